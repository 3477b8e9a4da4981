"""The tap: ties an operation's output to the gates of its parameters, and books what arrives there in the backward pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..persample.base import PerSample
from .gate import Gate, Target
from .own import Own
from .pass_state import in_backward
from .vmap import Part, below

#: From the saved tensors and the gradients of the outputs to the per-sample gradients of each target.
Book = Callable[[Sequence[Tensor], Sequence[Tensor | None]], Sequence[PerSample]]


class _Use:
    """One operation's use of some operands, by a part of the samples: what to book when its output gradient arrives."""

    __slots__ = ("__weakref__", "book", "gates", "part", "targets")

    def __init__(self, part: Part, targets: Sequence[Sequence[Target]], book: Book) -> None:
        self.part, self.targets, self.book = part, targets, book
        self.gates: list[Gate] = []
        alone = part.by_itself
        announced = not in_backward()  # a checkpoint's recomputation only refills the saved tensors of the first forward
        itself = weakref.ref(self)
        for operand in targets:
            for target in operand:
                gate = target.gate
                if gate not in self.gates:
                    self.gates.append(gate)
                if announced and not alone:
                    gate.expect(target.slot, itself)

    def arrived(self, saved: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        """Take the gradients of the outputs, which are there now."""
        tape = self.gates[0].group.tape
        if tape.probing:
            return
        for gate in self.gates:
            gate.permit()
        if tape.permitted is None and tape.own_pass is not None:
            tape.own_pass()
        arrived = [g for g in grads if g is not None]
        if not arrived:
            return
        with below(arrived[0].device.type):
            for operand, samples in zip(self.targets, self.book(saved, grads), strict=True):
                for target in operand:
                    own = samples if target.pull is None else target.pull(samples)
                    if self.part.by_itself:
                        target.gate.own(self.part).book(target.slot, own)
                    else:
                        target.gate.book(target.slot, self.part, own)


class _Tap(torch.autograd.Function):
    """Passes outputs through; backward books ``(saved, gradients)`` and passes the gradients on.

    The outputs come back detached (new tensors on the same memory), not as views: views made by a custom Function
    may not be modified in place, and models do apply in-place activations to the output of a layer.
    """

    @staticmethod
    def forward(ctx: Any, use: _Use, saved: tuple[Tensor, ...], num_outputs: int, *tensors: Tensor) -> Any:
        ctx.use, ctx.num_tokens = use, len(tensors) - num_outputs
        ctx.save_for_backward(*saved)
        ctx.materialize_grads = False
        return tensors[0].detach() if num_outputs == 1 else tuple([t.detach() for t in tensors[:num_outputs]])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _book_once(ctx, *grads) if torch.is_grad_enabled() else _book(ctx, *grads)


def _book(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    ctx.use.arrived(ctx.saved_tensors, grads)
    return (None, None, None, *grads, *[None] * ctx.num_tokens)


_book_once = once_differentiable(_book)  # under create_graph: what comes out has no graph, and says so

#: As _Tap.apply, for tensors below every transform.
_tap: Callable[..., Any] = super(torch.autograd.Function, _Tap).apply  # pyright: ignore[reportAttributeAccessIssue]


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
    if part.by_itself and not in_backward():
        tokens = [gate.own(part).token for gate in use.gates]
    else:
        tokens = [gate.token for gate in use.gates if gate.token is not None]
    result = _tap(use, tuple([t.detach() for t in saved]), len(outputs), *outputs, *tokens)
    return result if isinstance(result, tuple) else (result,)


def used_at(node: Any, output: int) -> tuple[Part, list[str]] | None:
    """Return whose use of which parameters is at this output of a node of autograd's graph; None where there is none."""
    use, own = getattr(node, "use", None), getattr(node, "own", None)
    if isinstance(use, _Use):
        return use.part, sorted({target.slot.name for operand in use.targets for target in operand})
    if isinstance(own, Own):
        return own.part, [own.name_at(output)]
    return None
