"""The gate of a group: where autograd itself says that a group's backward pass is complete, and clipping happens.

A group has at most one open gate. The gate is an autograd node between the group's parameters and every use of them:
a use (:func:`tap`) depends on the gate's *token*, so autograd runs the gate's backward once, after all uses of the
group that are in the graph. Then norms are known, factors are computed, the sum of clipped gradients is formed and
handed to the parameters, and what was booked is freed. That is Algorithm 1 of the paper with "l is the first layer of
the m-th group" decided by the engine instead of by a list of layers: right for tied weights, reused modules, unused
branches and any order of execution.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..clipping.functions import ClipFunction, bounded_factors, shortened
from ..errors import GroupClipError, PrivacyViolation
from ..persample.base import PerSample
from ..persample.combine import combine
from ..persample.norms import accumulation_dtype
from .cells import cells_of
from .pass_state import ELSEWHERE, INSIDE, Tape, in_backward
from .slot import Slot
from .vmap import Part, is_inside_a_transform, natively

#: Autograd runs ready nodes by descending sequence number. A gate must go before everything below it, or the group
#: would keep its memory to the end of the pass.
_FIRST = 2**63


@dataclass(eq=False)
class Group:
    """The running side of one group of the partition."""

    name: str
    threshold: float
    tape: Tape
    slots: list[Slot]
    gate: Gate | None = None

    @property
    def device(self) -> str:
        """The kind of device that the parameters are on."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.slots[0].param.device.type

    def open_gate(self) -> Gate:
        """The gate that uses of this group depend on now: it stays open until its backward."""
        if self.gate is None:
            if in_backward() and self.name in self.tape.ended:
                raise PrivacyViolation(
                    f"group {self.name!r} was clipped already when a checkpoint used it again in the backward pass: it would be "
                    "clipped in parts. This happens where a tensor is computed from a parameter in one segment and used in another "
                    "(T5's position bias): freeze that parameter, or leave the first segment without a checkpoint"
                )
            self.gate = Gate(self)
        return self.gate

    def drop_gate(self) -> None:
        """Forget a gate whose backward never came (a forward pass that was thrown away)."""
        if self.gate is not None:
            self.gate.token = None
            self.gate = None


class Gate:
    """One opening of a group: what has been booked since, and the token that uses depend on."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.closed = False
        self._booked: dict[Slot, list[tuple[Part, PerSample]]] = {}
        self._uses: dict[Slot, list[weakref.ref[_Use]]] = {}
        self._leaves: dict[Slot, Tensor] = {}
        self.token: Tensor | None = _GateNode.apply(self, *[slot.param for slot in group.slots])
        assert self.token is not None and self.token.grad_fn is not None
        self.token.grad_fn._set_sequence_nr(_FIRST)  # pyright: ignore[reportAttributeAccessIssue]

    def leaf(self, slot: Slot) -> Tensor:
        """A stand-in for the parameter, from which tensors that depend on parameters alone are derived."""
        if slot not in self._leaves:
            self._leaves[slot] = slot.param.detach().requires_grad_(True)
        return self._leaves[slot]

    def expect(self, slot: Slot, use: _Use) -> None:
        """Announce a use of the parameter whose backward is to come."""
        if not in_backward():  # a checkpoint's recomputation only refills the saved tensors of the first forward
            self._uses.setdefault(slot, []).append(weakref.ref(use))

    def book(self, slot: Slot, part: Part, grads: PerSample) -> None:
        """Keep the gradients of the samples of a part by one use. A lone use is normed at once: it keeps what is smaller."""
        if self.is_lone(slot):
            grads = grads.settle(slot.method)
        self._booked.setdefault(slot, []).append((part, grads))

    def is_lone(self, slot: Slot) -> bool:
        """Whether the use of the parameter that is about to be booked is its only one."""
        uses = self._uses.get(slot, ())
        return slot not in self._booked and (
            len(uses) <= 1 or sum(use() is not None for use in uses) <= 1  # some were thrown away
        )

    def close(self) -> list[Tensor | None]:
        """Clip: the sums of clipped gradients of the group's parameters (None where a parameter wasn't used)."""
        if self.closed:
            raise GroupClipError(
                f"a second backward went through the forward pass of group {self.group.name!r}: its samples were clipped and "
                "freed in the first. Sum the losses and call engine.backward once, or run the forward pass again"
            )
        self.closed, self.token = True, None
        if self.group.gate is self:
            self.group.gate = None
        tape = self.group.tape
        tape.ended.add(self.group.name)
        cells = cells_of(self._booked)
        self._booked.clear()
        if not cells:
            return [None] * len(self.group.slots)
        sizes = {cell.batch for cell in cells}
        if len(sizes) > 1:
            raise PrivacyViolation(
                f"group {self.group.name!r} was used with batches of different sizes {sorted(sizes)} in one backward pass; "
                "each loss must come from forward passes over the same samples"
            )
        scale = tape.scale(sizes.pop())
        norms: list[Tensor] = []
        totals: dict[Slot, Tensor] = {}
        while cells:
            cell = cells.pop(0)
            grads = {slot: combine(cell.uses.pop(slot)) for slot in list(cell.uses)}  # what was joined is freed
            if tape.observer is not None:
                for slot, samples in grads.items():
                    tape.observer.normed(slot.name, samples.method)
            found, factors = norms_and_factors(
                list(grads.values()), [slot.param.dtype for slot in grads], tape.clip, self.group.threshold, scale
            )
            norms.append(found if cell.rows is None else cell.placed(found))
            for slot, total in self._clipped(grads, found, factors).items():
                totals[slot] = total if slot not in totals else totals[slot] + total
        tape.report(self.group.name, norms[0] if len(norms) == 1 else torch.stack(norms).sum(dim=0))
        return [self._deliver(slot, totals.pop(slot, None)) for slot in self.group.slots]

    @staticmethod
    def _clipped(grads: dict[Slot, PerSample], norms: Tensor, factors: Tensor) -> dict[Slot, Tensor]:
        """The sums of clipped gradients, in the parameters' shapes."""
        finite = torch.isfinite(norms)
        if not bool(finite.all()):  # zero times infinity is not zero: such samples must be left out of the products
            keep = finite.nonzero().flatten()
            factors = factors[keep]
            grads = {slot: g.select(keep) for slot, g in grads.items()}
        sums = {}
        for slot in list(grads):
            sums[slot] = grads.pop(slot).weighted_sum(factors).reshape(slot.param.shape)
        return sums

    @staticmethod
    def _deliver(slot: Slot, total: Tensor | None) -> Tensor | None:
        return None if total is None else slot.deliver(total)


def norms_and_factors(
    grads: Sequence[PerSample], dtypes: Sequence[torch.dtype], clip: ClipFunction, threshold: float, scale: float
) -> tuple[Tensor, Tensor]:
    """Norms ``[B]`` of the gradients of one group, and what to weigh them by.

    Args:
        grads: of each parameter.
        dtypes: of each parameter.
        clip, threshold: the clip function, and R of the group.
        scale: what the gradients are to be multiplied by; the factors contain it.
    """
    squares = torch.stack([g.square_norms() for g in grads]).sum(dim=0, dtype=torch.float64)
    norms = squares.sqrt() * scale
    lowest = max([*dtypes, *(g.dtype for g in grads)], key=lambda d: torch.finfo(d).eps)
    norms = norms.to(max((accumulation_dtype(d) for d in dtypes), key=lambda d: torch.finfo(d).bits))
    factors = bounded_factors(clip, norms, threshold, lowest) * scale
    rooms: Tensor | float = 4.0 * torch.finfo(norms.dtype).tiny * len(grads)
    for g in grads:
        rooms = rooms + g.square_rooms()
    room = rooms.sqrt().to(norms.dtype) if isinstance(rooms, Tensor) else rooms**0.5
    return norms, shortened(factors, norms, room * scale)


class below:
    """Inside, in a backward pass: plain tensors below every transform, and full precision.

    A backward pass may run inside autocast, which would compute norms from half-precision products.
    """

    def __init__(self, device: str) -> None:
        self._device = device

    def __enter__(self) -> None:
        self._stack = ExitStack()
        self._stack.enter_context(torch._C.DisableTorchFunctionSubclass())
        if is_inside_a_transform():
            self._stack.enter_context(natively())
        if torch.is_autocast_enabled(self._device):
            self._stack.enter_context(torch.autocast(self._device, enabled=False))

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


class _GateNode(torch.autograd.Function):
    """Parameters in, an empty token out; backward waits for every use and then closes the gate."""

    @staticmethod
    def forward(ctx: Any, gate: Gate, *params: Tensor) -> Tensor:
        ctx.gate = gate
        ctx.set_materialize_grads(False)
        return torch.empty(0, dtype=params[0].dtype, device=params[0].device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        with below(ctx.gate.group.device):
            return (None, *ctx.gate.close())


#: From the saved tensors and the gradients of the outputs to the per-sample gradients of each target.
Book = Callable[[Sequence[Tensor], Sequence[Tensor | None]], Sequence[PerSample]]


@dataclass(eq=False)
class Target:
    """Where the per-sample gradients of one operand go: a parameter, as they are or pulled back to it."""

    slot: Slot
    gate: Gate
    pull: Callable[[PerSample], PerSample]


class _Use:
    """One operation's use of some operands, by a part of the samples: what to book when its output gradient arrives."""

    def __init__(self, part: Part, targets: Sequence[Sequence[Target]], book: Book) -> None:
        self.part, self.targets, self.book = part, targets, book
        for operand in targets:
            for target in operand:
                target.gate.expect(target.slot, self)

    def arrived(self, saved: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        """The gradients of the outputs are there."""
        tape = self.targets[0][0].gate.group.tape
        if tape.probing:
            return
        self._check()
        if tape.permitted is None and tape.own_pass is not None:
            tape.own_pass()
        if any(g is not None for g in grads):
            self._run(saved, grads)

    def _check(self) -> None:
        for gate in {t.gate for operand in self.targets for t in operand}:
            gate.group.tape.require_permission()  # before anything is booked
            if gate.closed:
                gate.close()  # raises: a second backward
            token = gate.token
            if token is not None and not torch._C._will_engine_execute_node(token.grad_fn):  # pyright: ignore
                raise PrivacyViolation(
                    f"a gradient through group {gate.group.name!r} was asked for that isn't the training loss's own "
                    "(torch.autograd.grad, for adversarial examples or penalties): it would be clipped together with it. For "
                    f"adversarial examples, {ELSEWHERE}. A penalty on gradients is one of the model's outputs. {INSIDE}"
                )

    def _run(self, saved: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        with below(self.targets[0][0].gate.group.device):
            for operand, samples in zip(self.targets, self.book(saved, grads), strict=True):
                for target in operand:
                    target.gate.book(target.slot, self.part, target.pull(samples))


class _Tap(torch.autograd.Function):
    """Passes outputs through; backward books ``(saved, gradients)`` and passes the gradients on.

    The outputs come back detached (new tensors on the same memory), not as views: views made by a custom Function
    may not be modified in place, and models do apply in-place activations to the output of a layer.
    """

    @staticmethod
    def forward(ctx: Any, use: _Use, saved: tuple[Tensor, ...], num_outputs: int, *tensors: Tensor) -> Any:
        ctx.use, ctx.num_tokens = use, len(tensors) - num_outputs
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        outputs = tuple(t.detach() for t in tensors[:num_outputs])
        return outputs[0] if num_outputs == 1 else outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.use.arrived(ctx.saved_tensors, grads)
        return (None, None, None, *grads, *[None] * ctx.num_tokens)


def tap(
    part: Part, outputs: Sequence[Tensor], saved: Sequence[Tensor], targets: Sequence[Sequence[Target]], book: Book
) -> tuple[Tensor, ...]:
    """Outputs of an operation, tied to the gates of its private operands. To be called natively.

    Args:
        part: the samples that they are of, ``[size, ..]``.
        outputs: what the operation computed with detached parameters, so that autograd knows its input gradients and no
            weight gradient.
        saved: tensors that ``book`` needs (they go through autograd's saved-tensor hooks).
        targets: for each private operand, the parameters that its per-sample gradients belong to.
        book: see :data:`Book`; one :class:`PerSample` an operand.
    """
    use = _Use(part, targets, book)
    result = _Tap.apply(use, tuple(t.detach() for t in saved), len(outputs), *outputs, *_tokens(targets))
    return result if isinstance(result, tuple) else (result,)


def _tokens(targets: Sequence[Sequence[Target]]) -> list[Tensor]:
    gates = {t.gate: None for operand in targets for t in operand}
    return [gate.token for gate in gates if gate.token is not None]


def use_at(node: Any) -> _Use | None:
    """The use of parameters whose gradients arrive at this node of autograd's graph; None at another node."""
    use = getattr(node, "use", None)
    return use if isinstance(use, _Use) else None
