"""One operation with private operands, and what rules do with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..errors import CoverageError
from ..nested import PLAIN_TYPES
from ..persample.base import PerSample
from .pass_state import Tape
from .tap import tap
from .tensors import PRIVATE_TYPES, Private, PrivateParameter, PrivateTensor, slots, tapes, targets
from .vmap import NATIVE, Part

#: How an operation was split by sample, for those who observe a pass.
RULE = "rule"  # in closed form
VMAP = "vmap"  # each sample with the parameters expanded for it: their gradients are instantiated
DERIVED = "derived"  # on parameters alone: followed until it meets the samples
SLOW = "one by one"  # the samples run one at a time


class NotSplit(Exception):
    """A rule has no closed form for this call: let the next way try."""


class Call:
    """One operation with private operands, on the samples of a part.

    Rules run natively: they work on physical tensors ``[size, *logical]`` (:mod:`groupclip.autograd.vmap`) and return such.
    """

    def __init__(
        self, tape: Tape, part: Part, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], privates: list[Private],
        plain: list[Tensor],
    ) -> None:  # fmt: skip
        self.tape, self.part, self.func, self.args, self.kwargs = tape, part, func, args, kwargs
        self.privates, self.plain = privates, plain  # the tensors among the operands
        self.size = part.size

    @property
    def name(self) -> str:
        return getattr(self.func, "__name__", str(self.func))

    @property
    def in_place(self) -> bool:
        """Whether the operation changes its first operand."""
        return is_in_place(self.func)

    @staticmethod
    def is_private(value: object) -> bool:
        return type(value) in PRIVATE_TYPES and value.requires_grad  # pyright: ignore[reportAttributeAccessIssue]

    def value(self, operand: Any) -> Any:
        """Return the operand as autograd may see it: no gradient goes to a parameter from here."""
        kind = type(operand)
        if kind is PrivateParameter:
            return operand.detach()
        return operand._derived.native if kind is PrivateTensor else operand

    def holds(self, operand: Any) -> bool:
        """Return whether the operand differs from sample to sample."""
        kind = type(operand)
        if kind in PLAIN_TYPES or kind in PRIVATE_TYPES:
            return self.part.level == NATIVE and kind in PRIVATE_TYPES and not operand.requires_grad
        return isinstance(operand, Tensor) and self.part.holds(operand)

    def samples(self, operand: Any) -> Tensor:
        """Return the operand of all samples, ``[size, *logical]``; a constant is expanded.

        Raises:
            NotSplit: it is private.
        """
        if not isinstance(operand, Tensor) or (type(operand) in PRIVATE_TYPES and operand.requires_grad):
            raise NotSplit
        return self.part.physical(operand) if self.part.holds(operand) else self.part.each(operand)

    def tap(
        self,
        outputs: list[Tensor],
        saved: list[Tensor],
        operands: list[Any],
        book: Callable[[Any, Any], list[PerSample]],
    ) -> tuple[Tensor, ...]:
        """Tie physical outputs to the private operands: ``book`` gives one :class:`PerSample` for each of ``operands``."""
        return tap(self.part, outputs, saved, [targets(o) for o in operands], book)

    @property
    def complex(self) -> bool:
        """Whether complex numbers take part: the rules' closed forms are those of real ones."""
        return any(map(Tensor.is_complex, self.plain)) or any(map(Tensor.is_complex, self.privates))

    def tell(self, way: str) -> None:
        """Tell who observes the pass how this operation was split."""
        if self.tape.observer is not None:
            names = [slot.name for p in self.privates for slot in slots(p)]
            self.tape.observer.used(names, self.name, way if self.part.level else SLOW)


def is_in_place(func: Any) -> bool:
    """Return whether the operation changes its first operand."""
    name = getattr(func, "__name__", str(func)).partition(".")[0]  # torch.ops.aten.add_.Tensor is add_.Tensor
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def tape_of(privates: Sequence[Private], func: Any) -> Tape:
    """Return the tape of the engine whose parameters these are.

    Raises:
        CoverageError: they are of several engines, or of none.
    """
    tape: Tape | None = None
    for private in privates:
        slot = private._slot if type(private) is PrivateParameter else None
        for other in tapes(private) if slot is None else (slot.group.tape,):
            if tape is not None and other is not tape:
                name = getattr(func, "__name__", str(func))
                raise CoverageError(
                    f"{name} uses parameters of models attached to different engines: attach one model that holds both"
                )
            tape = other
    assert tape is not None
    return tape


__all__ = ["DERIVED", "RULE", "SLOW", "VMAP", "Call", "NotSplit", "is_in_place", "tape_of"]
