"""One operation with private operands, and what rules do with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .batch import instances_in, replaced
from .errors import CoverageError
from .gate import tap
from .layout import Axis, Place
from .operands import Private, PrivateParameter, PrivateTensor, slots, tapes, targets
from .persample.base import PerSample
from .persample.pulled import Row
from .tape import Tape

_log = logging.getLogger("groupclip")
_said: set[str] = set()


#: How an operation was split by sample, for those who observe a pass.
RULE = "rule"  # in closed form
VMAP = "vmap"  # the one operation, sample by sample
DERIVED = "derived"  # on parameters alone: followed until it meets the batch
SLOW = "one by one"  # it met the batch, and samples couldn't be told apart: pulled back one sample at a time


class NotSplit(Exception):
    """A rule found no sample axis in this call: let the next way try."""


class Call:
    """One operation with private operands, and what rules do with it.

    ``samples_first``: ids of operands that are known to hold the samples in dimension 0, whatever lessons say.
    """

    def __init__(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], privates: list[Private],
        samples_first: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        self.func, self.args, self.kwargs, self.privates = func, args, kwargs, privates
        self._samples_first, self._saw_batch = samples_first, False
        found = {id(tape): tape for p in privates for tape in tapes(p)}
        if len(found) > 1:
            raise CoverageError(
                f"{self.name} uses parameters of models attached to different engines: attach one model that holds both"
            )
        self.tape: Tape = next(iter(found.values()))
        self.batch = self.tape.require_batch()

    @property
    def name(self) -> str:
        return getattr(self.func, "__name__", str(self.func))

    @property
    def in_place(self) -> bool:
        """Whether the operation changes its first operand."""
        return self.name == "__setitem__" or (self.name.endswith("_") and not self.name.endswith("__"))

    @staticmethod
    def is_private(value: object) -> bool:
        return isinstance(value, (PrivateParameter, PrivateTensor)) and value.requires_grad

    def value(self, operand: Any) -> Any:
        """The operand as autograd may see it: no gradient goes to a parameter from here."""
        if isinstance(operand, PrivateTensor):
            return operand._derived.native
        if isinstance(operand, PrivateParameter):
            return operand.detach()
        return operand

    def activation(self, operand: Any, place: int = 0) -> tuple[Tensor, Axis]:
        """The operand as a batch of activations, and where its samples are.

        Args:
            operand: of the operation.
            place: which operand it is, if the operation has several that may be activations.

        Raises:
            NotSplit: it doesn't come from the batch, or where its samples are isn't certain.
        """
        axis = self.axis(operand, place)  # a private tensor's is nowhere, until it meets the batch
        if axis in (Axis.CONSTANT, Axis.MIXED):
            raise NotSplit
        return operand, axis

    def axis(self, operand: Any, place: int) -> Axis:
        """Where the samples are in an operand that isn't private."""
        if self.is_private(operand) or not isinstance(operand, Tensor) or operand.dim() == 0:
            return Axis.CONSTANT
        if id(operand) in self._samples_first:
            return Axis.MAJOR
        from_batch = operand.requires_grad or self.tape.inputs.holds(operand)
        where = self._where(operand, place)
        axis = self.tape.layouts.axis(where, operand, self.batch, from_batch, shown=self.tape.shown)
        self._saw_batch |= self.tape.layouts.varies(where)
        return axis

    def _where(self, operand: Tensor, place: int) -> Place:
        first = self.privates[0]
        slot = first._derived.roots[0].slot if isinstance(first, PrivateTensor) else first._slot
        assert slot is not None
        return slot.name, self.func, place, operand.dim(), self.tape.led_here

    def plain(self) -> list[Tensor]:
        """The operands that aren't private."""
        return [t for t in instances_in((self.args, self.kwargs), Tensor) if not self.is_private(t)]

    def plain_axes(self) -> list[Axis]:
        """Where the samples are in each of them, for an operation that no rule splits."""
        return [self.axis(t, _unruled(i, t)) for i, t in enumerate(self.plain())]

    def show_operands(self) -> None:
        """In a lesson: what is met by computed parameters, even if a rule never asks for it.

        The same operation may be used several times, and other shapes send other uses past the rules: each must have been seen.
        """
        if any(isinstance(p, PrivateTensor) for p in self.privates):
            for i, t in enumerate(self.plain()):
                if t.dim() > 0 and id(t) not in self._samples_first:
                    self.tape.layouts.met(self._where(t, _unruled(i, t)), t)

    def aligned_rows(self, operand: Private) -> Tensor:
        """A private operand with the same number of rows a sample, that the operation lines up with the batch, as activations."""
        if isinstance(operand, PrivateTensor) and operand._derived.rows is not None:
            try:
                return operand._derived.rows()
            except NotSplit:
                pass
        batch = self.batch

        def book(saved: Any, grads: Any) -> list[PerSample]:
            rows = Axis.MAJOR.split(grads[0], batch)
            return [Row(rows, torch.arange(batch, device=rows.device), batch)]

        return self.tap([self.value(operand)], [], [operand], book)[0]

    def lined_up(self, rows: Mapping[int, Tensor], others: Sequence[Tensor]) -> Any:
        """The same operation with activations ``rows`` for some private operands; they and ``others`` hold the samples first."""
        args, kwargs = replaced((self.args, dict(self.kwargs)), lambda v: rows.get(id(v), v))
        remaining = [p for p in self.privates if id(p) not in rows]
        if not remaining:
            return self.seen(self.func(*args, **kwargs), RULE)
        from .private import split  # here: it works on calls

        first = frozenset(map(id, [*rows.values(), *others]))
        return split(Call(self.func, args, kwargs, remaining, first))

    def tap(
        self,
        outputs: list[Tensor],
        saved: list[Tensor],
        operands: list[Any],
        book: Callable[[Any, Any], list[PerSample]],
    ) -> tuple[Tensor, ...]:
        """Tie outputs to the private operands: ``book`` gives one :class:`PerSample` for each of ``operands``."""
        return tap(outputs, saved, [targets(o) for o in operands], book)

    @property
    def complex(self) -> bool:
        """Whether complex numbers take part: the rules' closed forms are those of real ones."""
        return any(t.is_complex() for t in instances_in((self.args, self.kwargs), Tensor))

    @property
    def met_batch(self) -> bool:
        """Whether the batch takes part: tensors that gradients are recorded for, or what lessons saw to vary with it."""
        if self._saw_batch:
            return True
        return any(t.requires_grad and not self.is_private(t) for t in instances_in((self.args, self.kwargs), Tensor))

    def seen(self, result: Any, way: str) -> Any:
        """Tell who observes the pass how this operation was split; gives ``result`` back."""
        if self.tape.observer is not None and not self.tape.layouts.learning:  # a lesson may assume wrongly
            names = [slot.name for p in self.privates for slot in slots(p)]
            self.tape.observer.used(names, self.name, way)
        return result

    def say_slow(self) -> None:
        """Say, once for each operation, that samples of the batch couldn't be told apart here."""
        if self.met_batch and self.name not in _said and not self.tape.layouts.learning:
            _said.add(self.name)
            _log.warning(
                "%s: the samples don't lie along one dimension of what a parameter meets here, so gradients from here on are "
                "computed one sample at a time: exact, and slow",
                self.name,
            )


def _unruled(n: int, operand: Tensor) -> int:
    """The number of an operand where no rule gives it one: masks and activations in the same place are not the same."""
    return 100 + 2 * n + operand.requires_grad
