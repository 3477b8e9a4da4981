"""Where samples lie in what parameters meet, told from shapes alone: those of two passes with unequal batches.

That is enough for memory. Which of two orders samples lie in along a dimension, or values that show a constant table to be
as long as the batch, matter to privacy only: the engine itself learns from values (:mod:`groupclip.layout`).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..layout import Axis, Layouts, Place

_ROUNDS = 4


class ShapeLayouts(Layouts):
    """In place of an engine's own, for a pass without numbers."""

    def __init__(self) -> None:
        super().__init__(complete=True)
        self._met: dict[Place, list[tuple[int, ...]]] = {}
        self._guesses: dict[Place, Axis] = {}

    def axis(self, place: Place, x: Tensor, batch: int, from_batch: bool, *, shown: bool) -> Axis:
        self._met.setdefault(place, []).append(tuple(x.shape))
        axis = self.known.get(place)
        if axis is None:
            guess = Axis.MAJOR if Axis.MAJOR.fits(x.shape, batch) else Axis.SECOND
            axis = self._guesses.setdefault(place, guess)
        if batch == 1 and axis is not Axis.SECOND:
            return Axis.MAJOR  # as the engine
        if axis is Axis.CONSTANT:
            return axis
        return axis if axis.fits(x.shape, batch) else Axis.MIXED

    def learn(self, run: Callable[[int], None], batch: int) -> None:
        """``run(n)`` makes a forward pass with n samples; it is called with ``batch`` and one more, until they agree.

        With two at least: one sample is like a constant.
        """
        batch = max(batch, 2)
        for _ in range(_ROUNDS):
            self._guesses.clear()
            met = []
            for samples in (batch, batch + 1):
                self._met = {}
                run(samples)
                met.append(self._met)
            first, second = met
            for place in first.keys() | second.keys():
                self.known[place] = _compare(first.get(place, []), second.get(place, []), batch)
            if all(self.known[place] is guess for place, guess in self._guesses.items()):
                break
        self._met = {}


def _compare(first: list[tuple[int, ...]], second: list[tuple[int, ...]], batch: int) -> Axis:
    if len(first) != len(second):
        return Axis.MIXED
    found = {_changed(x, y, batch) for x, y in zip(first, second, strict=True)}
    return found.pop() if len(found) == 1 else Axis.MIXED


def _changed(x: tuple[int, ...], y: tuple[int, ...], batch: int) -> Axis:
    if x == y:
        return Axis.CONSTANT
    if x[0] * (batch + 1) == y[0] * batch and x[1:] == y[1:]:
        return Axis.MAJOR
    if len(x) > 1 and x[1] == batch and y[1] == batch + 1 and (x[0], *x[2:]) == (y[0], *y[2:]):
        return Axis.SECOND
    return Axis.MIXED
