"""What one of several processes holds and sends, from sizes alone: no process is started.

Bytes "handed over" are those of the tensors that a rank gives to torch's collectives in one step. What of them goes over the wire
is the network's business: a ring sends ``(n - 1) / n`` of a gathered or scattered tensor, and twice that of a sum that all get.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PerRank:
    """Bytes of the rank that holds most.

    Attributes:
        weights, gradients, state: between passes; the state is the optimizer's.
        whole: weights that a pass puts together, all units at once; those of one unit after the other are fewer.
        largest: of one unit, or of the whole model where nothing is cut.
        handed_over: to collectives in a step.
    """

    weights: int
    gradients: int
    state: int
    whole: int
    largest: int
    handed_over: int

    @property
    def between_passes(self) -> int:
        return self.weights + self.gradients + self.state


def under_ddp(sizes: Sequence[int], *, frozen: int = 0, itemsize: int = 4, moments: int = 2) -> PerRank:
    """Return the bytes of a rank under DistributedDataParallel: as many as of one process, and a sum and a copy of it once a step.

    Args:
        sizes: numbers of the trainable parameters.
        frozen: numbers that don't train, together.
        itemsize: bytes of a number. Sums are in 4 at least.
        moments: numbers that the optimizer keeps for each: 2 for Adam, 1 for momentum.
    """
    trainable = sum(sizes)
    return PerRank(
        weights=(trainable + frozen) * itemsize,
        gradients=trainable * itemsize,
        state=moments * trainable * itemsize,
        whole=0,
        largest=(trainable + frozen) * itemsize,
        handed_over=2 * trainable * max(itemsize, 4),  # to the owner, and from it
    )


@dataclass(frozen=True)
class Unit:
    """Parameters that ``fully_shard`` cuts and puts together at once.

    Attributes:
        shapes: of the parameters that train.
        again: it is put together again in the backward pass (``reshard_after_forward``; torch's default for all but the root).
        frozen: shapes of those that don't.
    """

    shapes: Sequence[Sequence[int]]
    again: bool = True
    frozen: Sequence[Sequence[int]] = ()

    def part(self, ranks: int) -> int:
        """Return how many numbers the first rank keeps, whose parts are longest: parameters are cut in their first dimension."""
        return self.training(ranks) + _part(self.frozen, ranks)

    def training(self, ranks: int) -> int:
        """Return how many of them train."""
        return _part(self.shapes, ranks)


def _part(shapes: Sequence[Sequence[int]], ranks: int) -> int:
    return sum(math.ceil(shape[0] / ranks) * math.prod(shape[1:]) for shape in shapes)


def under_fully_shard(
    units: Sequence[Unit], ranks: int, *, microbatches: int = 1, itemsize: int = 4, pass_itemsize: int | None = None,
    moments: int = 2,
) -> PerRank:  # fmt: skip
    """Return the bytes of a rank under ``fully_shard``, whose groups are summed as they close: once for each micro-batch.

    Args:
        units: of the model; a parameter is in one of them.
        ranks: n.
        microbatches: of a step, on each rank.
        itemsize: bytes of a number that is kept, and of a sum (4 at least).
        pass_itemsize: bytes of a number in a pass, by the MixedPrecisionPolicy.
        moments: as :func:`under_ddp`.
    """
    gathered = itemsize if pass_itemsize is None else pass_itemsize
    parts = [unit.part(ranks) for unit in units]
    trains = sum(unit.training(ranks) for unit in units)
    whole = [part * ranks * gathered for part in parts]
    times = [2 if unit.again and unit.shapes else 1 for unit in units]
    return PerRank(
        weights=sum(parts) * itemsize,
        gradients=trains * itemsize,
        state=moments * trains * itemsize,
        whole=sum(whole),
        largest=max(whole),
        handed_over=microbatches
        * (sum(size * n for size, n in zip(whole, times, strict=True)) + trains * ranks * max(itemsize, 4)),
    )
