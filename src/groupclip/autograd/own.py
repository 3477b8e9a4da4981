"""The parameters as a sample has them that runs by itself: what comes out of its graph is its gradient, by autograd alone.

No operation has to be known for that. The sample's operations get copies of the parameters (on the same memory), which one node
of autograd makes for each group; the node runs when every use of them has been differentiated, and all it is given is that
sample's. So the sample is clipped there and then, and its gradients are freed before those of the next sample come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..errors import PrivacyViolation
from ..nested import replaced
from ..persample.base import PerSample
from ..persample.dense import Dense
from .pass_state import in_backward
from .vmap import Part, below, natively

if TYPE_CHECKING:
    from .gate import Gate
    from .slot import Slot

#: Their rules keep a gradient as the rows that were looked up, which is far less than a table.
LOOKUPS: frozenset[Any] = frozenset({F.embedding, F.embedding_bag, Tensor.__getitem__})


class Own:
    """One sample's copies of the parameters of a group.

    Args:
        gate: of the group.
        part: the sample, alone.
    """

    def __init__(self, gate: Gate, part: Part) -> None:
        self.gate, self.part = gate, part
        self._booked: dict[Slot, list[PerSample]] = {}
        assert gate.token is not None
        slots = gate.group.slots
        with natively(), torch._C.DisableTorchFunctionSubclass():
            self.token, *copies = _copies(self, gate.token, *[slot.param.detach() for slot in slots])
        self.tensors: dict[Slot, Tensor] = dict(zip(slots, copies, strict=True))

    @property
    def has_booked(self) -> bool:
        """Whether a tapped use gave something, and the rest of the sample's gradient didn't come."""
        return bool(self._booked)

    def require_current(self) -> None:
        """Check that the copies are still on the parameters' memory.

        Raises:
            PrivacyViolation: a parameter was given other memory since an earlier forward pass, which may yet be differentiated.
        """
        with torch._C.DisableTorchFunctionSubclass():
            for slot, copy in self.tensors.items():
                if slot.param.data_ptr() != copy.data_ptr():
                    raise PrivacyViolation(
                        f"{slot.name!r} was given other memory (p.data = ..) since a forward pass whose backward hasn't come: call "
                        "engine.discard() first, which gives that pass up, or run it under torch.no_grad()"
                    )

    def name_at(self, output: int) -> str:
        """Return which parameter is the node's output of this number."""
        slots = self.gate.group.slots
        return slots[output - 1].name if output else self.gate.group.name

    def book(self, slot: Slot, grads: PerSample) -> None:
        """Keep what a tapped use of the sample gave: of a table, or of a tensor derived from parameters."""
        self._booked.setdefault(slot, []).append(grads)

    def arrived(self, grads: Sequence[Tensor | None]) -> None:
        """Hand on the sample's gradients, which are all there now, to the gate."""
        tape = self.gate.group.tape
        if tape.probing:
            return
        self.gate.permit()
        if tape.permitted is None and tape.own_pass is not None:
            tape.own_pass()
        with below(self.gate.group.slots[0].param.device.type):
            uses, self._booked = self._booked, {}
            for slot, grad in zip(self.gate.group.slots, grads, strict=True):
                if grad is not None:
                    grad = grad if grad.layout is torch.strided else grad.to_dense()
                    uses.setdefault(slot, []).append(Dense(grad.unsqueeze(0)))
            if uses:
                self.gate.book_own(self.part, uses)


class _Copies(torch.autograd.Function):
    """Passes parameters through; backward is run once, with what every use of them gave."""

    @staticmethod
    def forward(ctx: Any, own: Own, token: Tensor, *params: Tensor) -> Any:
        del token
        ctx.own = own
        ctx.materialize_grads = False
        first = params[0]
        return (torch.empty(0, dtype=first.dtype, device=first.device), *[p.detach() for p in params])

    @staticmethod
    def backward(ctx: Any, _: Tensor | None, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _arrived_once(ctx, *grads) if torch.is_grad_enabled() else _arrived(ctx, *grads)


def _arrived(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    ctx.own.arrived(grads)
    return (None, None, *[None] * len(grads))


_arrived_once = once_differentiable(_arrived)  # under create_graph: what comes out has no graph, and says so

#: As _Copies.apply, below every transform.
_copies: Callable[..., tuple[Tensor, ...]] = super(torch.autograd.Function, _Copies).apply  # pyright: ignore[reportAttributeAccessIssue]


def run_on_own(
    part: Part, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], slots: Mapping[int, Slot]
) -> Any:
    """Run an operation of the sample on its own copies.

    Args:
        slots: id of a parameter among the operands -> its slot.
    """
    if in_backward():
        own = {key: _again(slot) for key, slot in slots.items()}
    else:
        own = {key: _gate_of(slot).own(part).tensors[slot] for key, slot in slots.items()}

    def change(value: Any) -> Any:
        return own.get(id(value), value)

    if not kwargs and not any(type(a) in _NESTED for a in args):
        return func(*[own.get(id(a), a) for a in args])
    args, kwargs = replaced((args, dict(kwargs)), change)
    return func(*args, **kwargs)


def _gate_of(slot: Slot) -> Gate:
    gate = slot.group.gate
    if gate is not None:
        return gate
    with natively():  # gates are no part of a transform that the model's code is in
        return slot.group.open_gate()


_NESTED = frozenset({tuple, list, dict})


def _again(slot: Slot) -> Tensor:
    """Return a copy for a checkpoint that computes again: what it saves is needed, and no gradient goes through it."""
    copy = slot.param.detach().requires_grad_(True)
    name = slot.name

    def refuse(_: Tensor) -> None:
        raise RuntimeError(f"a gradient of {name!r} came out of what a checkpoint computed again")

    copy.register_hook(refuse)
    return copy
