"""What each random draw of a pass is: of single samples, along which dimension, or of all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

#: Which of several candidates a shared number is in each round: the middle one, the lowest, the highest.
PICKED = (0.5, 0.0, 1.0)
CANDIDATES = 33

SHARED = -1  # in the place of a sample: what all samples share


@dataclass(frozen=True)
class Drawn:
    """One draw: the function, its arguments if no tensor is among them, the shape of the numbers, and the shape of the first
    tensor that it was given (or the numbers').
    """

    what: Any
    args: tuple[Any, ...] | None
    shape: tuple[int, ...]
    asked: tuple[int, ...] = ()


@dataclass(frozen=True)
class Kind:
    """A draw as one sample makes it, and the dimension that holds the samples; None if they share it."""

    single: Drawn
    axis: int | None

    @property
    def is_shared_number(self) -> bool:
        return self.axis is None and math.prod(self.single.shape) == 1


def classified(single: Sequence[Drawn], batches: Sequence[Sequence[Drawn]], size: int) -> list[Kind | None]:
    """Return what each draw is, from a pass on one sample and passes on ``size`` samples; None where it isn't clear."""
    kinds: list[Kind | None] = []
    for one, *several in zip(single, *batches, strict=False):
        try:
            axes = {axis_of(one, many, size) for many in several}
            kinds.append(Kind(one, axes.pop()) if len(axes) == 1 else None)
        except ValueError:
            kinds.append(None)
    return kinds


def guess(what: Any, args: Sequence[Any], size: int) -> Kind | None:
    """Say what a draw would be that has a number for each of the first tensor, whose dimension 0 holds ``size`` samples, as
    dropout's are; None if its arguments don't look so. Single samples have to confirm it.
    """
    if not args or not isinstance(args[0], Tensor) or args[0].dim() == 0 or args[0].shape[0] != size:
        return None
    shape = (1, *args[0].shape[1:])
    return None if math.prod(shape) == 1 else Kind(Drawn(what, None, shape, shape), 0)


def axis_of(one: Drawn, many: Drawn, size: int) -> int | None:
    """Return the dimension in which a draw for ``size`` samples is so many times as long; None if it is as long.

    Raises:
        ValueError: neither.
    """
    if many.what != one.what or len(many.shape) != len(one.shape):
        raise ValueError
    longer = [d for d, (a, b) in enumerate(zip(one.shape, many.shape, strict=True)) if a != b]
    if not longer:
        return None
    if len(longer) > 1 or many.shape[longer[0]] != size * one.shape[longer[0]]:
        raise ValueError
    return longer[0]


def quantile(numbers: Sequence[Any], share: float) -> Any:
    """Return a quantile of numbers in rising order."""
    return numbers[int(share * (len(numbers) - 1))]


def share_of(sample: int, total: int, round_: int) -> float:
    """Say where a sample's number lies among those that might have been drawn, the first sample's highest: evenly spread; in other
    rounds over the lowest or the highest quarter, with its end. Samples beyond the first ``total`` draw as these do.
    """
    sample %= total
    if PICKED[round_] == 0.5:
        return 1 - (sample + 0.5) / total
    from_top = sample / (total - 1) / 4
    return 1 - from_top if PICKED[round_] == 1.0 else 0.25 - from_top


def stream(round_: int, place: int, sample: int) -> int:
    """Return the seed for the draw at this place of a pass, of one sample."""
    return ((round_ + 1) * 1_000_003 + place) * 1_000_003 + sample + 1


@dataclass(frozen=True)
class Stand:
    """Says who stands where in a pass.

    Attributes:
        samples: at each place of the batch.
        total: how many samples are looked at alone.
        round: see :data:`PICKED`.
    """

    samples: tuple[int, ...]
    total: int
    round: int
