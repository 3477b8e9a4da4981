"""What a trainer is given in the place of its DataLoader: each item is one whole logical batch, that is one step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..privacy.mechanism import Mechanism
from ..sampling.batches import LogicalBatch, LogicalBatches


def steps_in_an_epoch(mechanism: Mechanism) -> int:
    """Return how many steps draw as many samples as there are, on average; at least 1."""
    return max(1, round(1 / mechanism.sample_rate))


class Step:
    """Holds one logical batch. It isn't iterable, so nothing but the training step looks at the samples."""

    def __init__(self, batch: LogicalBatch) -> None:
        self.batch = batch


class Steps:
    """The steps that are left, an epoch at each iteration. It is no ``DataLoader``, so Accelerate doesn't shard it.

    Args:
        batches: of the steps that are left, drawn by groupclip.
        in_epoch: steps of an epoch. The first epoch is shorter where a run goes on inside one.
        done: steps that the trainer counts before the first.
        charge: called before each batch is drawn. Or else another one might be drawn in the place of one that failed.
    """

    def __init__(self, batches: LogicalBatches, in_epoch: int, done: int, charge: Callable[[], object]) -> None:
        self._left, self._in_epoch, self._charge = len(batches), in_epoch, charge
        self._done = done
        self._drawn = iter(batches)  # one pass for all epochs: a new one would have a new key, and leave the old behind

    def __len__(self) -> int:
        return self._in_epoch

    def __iter__(self) -> Iterator[Step]:
        for _ in range(self._in_epoch - self._done % self._in_epoch):
            if self._left == 0:
                return
            self._charge()
            self._left -= 1
            self._done += 1
            yield Step(next(self._drawn))

    def close(self) -> None:
        """End the workers that read ahead."""
        self._drawn.close()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the batches of a private run have no {name!r}: groupclip draws them, and no sampler does"
        )
