"""Whether a pass takes the course that its lesson took: where the samples lie is trusted as long as it does.

A lesson (:mod:`groupclip.layout`) shows where two samples lie in what each parameter meets. The batch itself may be arranged
otherwise: by a flag, by its size, by values (a sort in which the two samples tie, masked rows of which they have equally
many). Two things give that away while the pass is made:

* between two uses of parameters, other operations that arrange rows (a transposition, a flip, a join). They are part of what a
  lesson learns by: after operations that no lesson has seen, nothing is known, and another lesson is due;
* an operation that moves rows by an index or a mask, and on this batch doesn't move them as in the lesson: it is run
  again on the number of each row's sample. From there on, nothing that the lesson taught is believed in this pass.

What isn't known is computed one sample at a time: exact, and slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .arranging import ARRANGES, Move, Moved, Row
from .batch import instances_in
from .layout import Axis, Layouts
from .writes import opaque


class Course(TorchFunctionMode):
    """Follows the operations of forward passes of one model.

    Args:
        layouts: what lessons teach; told when this batch isn't arranged so.
        private: the classes of tensors whose uses part one stretch from the next.
    """

    def __init__(self, layouts: Layouts, private: tuple[type, ...]) -> None:
        super().__init__()
        self._layouts, self._private = layouts, private
        self._batch = 0
        self._passes = 0  # one inside the other
        self._stretch: Counter[Any] = Counter()  # what arranged rows since the last use of a parameter
        self._row = -1  # that was read last
        self._uses = 0  # of parameters in this pass
        self.before: int | None = None  # what led to the use under way; None where no pass is followed

    def begin(self, batch: int) -> None:
        """Follow the pass that begins, on ``batch`` samples."""
        self._batch, self._uses, self.before = batch, 0, 0
        self._stretch.clear()
        self._layouts.astray = False
        self._passes += 1
        if self._passes == 1:
            self.__enter__()

    def end(self) -> None:
        if self._passes == 1:
            self.__exit__(None, None, None)
            self.before = None
        self._passes = max(0, self._passes - 1)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        if any(issubclass(t, self._private) for t in types):
            self.before = self._so_far()
            self._stretch.clear()
            self._uses += 1
            return func(*args, **kwargs)
        arranges = ARRANGES.get(func)
        if arranges is None:
            return func(*args, **kwargs)
        kind, moves = arranges
        if moves is not None and not _indexed(func, args):
            moves = None
        result = func(*args, **kwargs)
        # Behind the first parameter, what carries no gradient is masks and positions, whose making differs from pass to pass.
        if self._uses == 0 or any(t.requires_grad for t in instances_in((args, result), Tensor)):
            self._note(func, kind(args, kwargs, result))
        if moves is not None and self._batch > 1 and not self._layouts.astray:
            with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
                self._follow(Move(func, args, kwargs, result), moves)
        return result

    def _so_far(self) -> int:
        """The stretch as one number. Once and repeatedly are told apart, but not how often: loops run over rows and steps."""
        return hash(frozenset((step, min(n, 2)) for step, n in self._stretch.items()))

    def _note(self, func: Any, facts: Any) -> None:
        if facts is None:
            return
        if isinstance(facts, Row):  # rows read one after another are the same course, however many
            facts, self._row = (facts.number in (0, self._row, self._row + 1), facts.others), facts.number
        self._stretch[(func, facts)] += 1

    def _follow(self, move: Move, moves: Callable[[Move], Iterator[Moved]]) -> None:
        for n, moved in enumerate(moves(move)):
            if isinstance(moved.source, nn.Parameter) or any(map(_out_of_sight, (moved.source, moved.target))):
                continue
            where = self._so_far()
            learnt = [
                self._layouts.met(("", (move.func, n, self._uses), i, t.dim(), where), t)
                for i, t in enumerate((moved.source, moved.target))
            ]
            if self._layouts.learning:
                continue
            source, target = learnt
            if source is None or target is None:
                right = all(moved.keeps(axis, axis, len_) for axis, len_ in _both_ways(moved.source))
            elif source is Axis.CONSTANT and not moved.source.requires_grad:
                continue  # rows of a table: where its entries go is up to the index
            elif Axis.MIXED in (source, target) or Axis.CONSTANT in (source, target):
                continue  # nothing was learnt by the order of these rows
            else:
                right = moved.keeps(source, target, self._batch)
            if not right:
                self._layouts.go_astray()
                return


def _both_ways(x: Tensor) -> Iterator[tuple[Axis, int]]:
    """For what no lesson saw: neither of the first two dimensions may be touched."""
    yield Axis.MAJOR, x.shape[0]
    if x.dim() > 1:
        yield Axis.SECOND, x.shape[1]


def _out_of_sight(x: Tensor) -> bool:
    return x.dim() == 0 or x.numel() == 0 or x.is_meta or opaque(x)


def _indexed(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an index is more than numbers and slices, which move the same rows whatever the values."""
    if func not in (Tensor.__getitem__, Tensor.__setitem__):
        return True
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    return any(not (i is None or i is Ellipsis or isinstance(i, (int, slice))) for i in index)
