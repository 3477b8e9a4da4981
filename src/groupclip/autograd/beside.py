"""Parameters that are used beside the model's own forward pass: a penalty in the loss, a layer called after the model.

There the samples lie side by side in the user's own tensors, and nothing proves whose rows are whose. So no rows are read: the
loss of one sample after another is differentiated, and its gradient is that sample's. Exact by the contract that loss i is
sample i's, and slow: a backward pass through that part of the graph for each sample.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import PrivacyViolation, UnsupportedOperation
from ..nested import replaced
from ..persample.base import PerSample
from ..persample.dense import Dense
from .gate import Target
from .pass_state import Tape, in_backward, refuse_reentry
from .tap import tap
from .tensors import Private, PrivateTensor, slots
from .vmap import NATIVE, Part, natively

_log = logging.getLogger("groupclip")
_said: set[str] = set()


def use_beside(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], privates: list[Private]) -> Any:
    """Run an operation on stand-ins of the parameters, which autograd gives gradients.

    Raises:
        PrivacyViolation: the number of samples isn't known, or the user's own ``loss.backward()`` is to come.
    """
    if in_backward():
        refuse_reentry()
    if not tape.knows_batch:
        return _fact(tape, func, args, kwargs, privates)
    if tape.loss_reduction != "none":
        raise PrivacyViolation(
            "a parameter is used beside the model's forward pass, where its gradients are told apart by the losses of single "
            "samples, and loss.backward() has one loss only: attach with loss_reduction='none' and call "
            "engine.backward(losses), or compute it inside the model"
        )
    if tape.in_step:
        raise UnsupportedOperation(
            f"{getattr(func, '__name__', str(func))} uses a parameter beside the model's forward pass, and the model is cut over "
            "ranks: its gradients would be told apart by a backward pass for each sample, and ranks have different numbers of "
            "samples. Compute it inside the model"
        )
    own: dict[int, Tensor] = {}
    with natively():  # gates are no part of a transform that the user's code is in
        for private in privates:
            for slot in slots(private):
                tape.beside[slot] = slot.group.open_gate()
            if isinstance(private, PrivateTensor):
                for root in private._derived.roots:
                    root.require_open()
                own[id(private)] = private._derived.shadow
            else:
                slot = private._slot
                assert slot is not None
                own[id(private)] = slot.group.open_gate().leaf(slot)
    name = getattr(func, "__name__", str(func))
    if tape.observer is not None:
        tape.observer.used([slot.name for p in privates for slot in slots(p)], name, "one by one")
    if name not in _said:
        _said.add(name)
        _log.warning(
            "%s uses a parameter beside the model's forward pass: its gradients are computed one sample's loss at a time, "
            "exact and slow. Do it inside the model's forward, or in a function of the samples alone: "
            "engine.per_sample(function, inputs)",
            name,
        )
    args, kwargs = replaced((args, dict(kwargs)), lambda v: own.get(id(v), v))
    return func(*args, **kwargs)


def _fact(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], privates: list[Private]) -> Any:
    """Outside a pass: what carries no gradient (``torch.equal``, ``p.tolist()``) is as good as any; the rest is refused."""
    own = {id(p): p.detach().requires_grad_(True) for p in privates}
    result = func(*replaced(args, lambda v: own.get(id(v), v)), **replaced(dict(kwargs), lambda v: own.get(id(v), v)))
    if any(t.requires_grad for t in _tensors(result)):
        tape.require_batch()  # refuses
    return result


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (tuple, list)) else []


def settled(tape: Tape, losses: Tensor) -> Tensor:
    """Return the losses ``[B]``, with what was used beside the forward pass booked for their backward.

    Raises:
        PrivacyViolation: a gradient isn't finite, and it can't be told whose fault that is.
    """
    chosen = [(slot, gate, gate.leaf(slot)) for slot, gate in tape.beside.items() if gate.token is not None]
    tape.beside.clear()
    if not chosen:
        return losses
    leaves = [leaf for _, _, leaf in chosen]
    tape.probing = True
    try:
        rows = [
            torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)
            if loss.requires_grad
            else [None] * len(leaves)
            for loss in losses.unbind()
        ]
    finally:
        tape.probing = False
    targets: list[list[Target]] = []
    grads: list[Tensor] = []
    for k, (slot, gate, leaf) in enumerate(chosen):
        found = [g if g is None or g.layout is torch.strided else g.to_dense() for g in (row[k] for row in rows)]
        if all(g is None for g in found):
            continue
        stacked = torch.stack([torch.zeros_like(leaf) if g is None else g for g in found])
        if not stacked.is_meta and not bool(torch.isfinite(stacked).all()):
            raise PrivacyViolation(
                f"the gradient of {slot.name!r} isn't finite where it was used beside the model's forward pass. There one sample "
                "can make the gradients of other samples infinite too, and so silence them. Compute it inside the model's forward, "
                "or in a function of the samples alone: engine.per_sample(function, inputs)"
            )
        targets.append([Target(slot, gate)])
        grads.append(stacked)
    if not targets:
        return losses
    part = Part(None, len(losses), len(losses), NATIVE)

    def book(saved: Any, weights: Any) -> list[PerSample]:
        return [Dense(g * weights[0].to(g.dtype).view(-1, *[1] * (g.dim() - 1))) for g in saved]  # by the loss scale

    return tap(part, [losses], grads, targets, book)[0]
