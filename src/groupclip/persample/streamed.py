"""Gradients of the one weight that a group's factors wait for: formed for a few samples at once, normed, weighed and dropped.

So each gradient is formed once, and nothing of it is kept: no second product, and no memory but that of the few.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from .base import PerSample
from .dense import Dense
from .norms import INSTANTIATED, accumulation_dtype, lost

_AT_ONCE = 1 << 21  # numbers of gradients that are there together: what a cache holds
_FEW = 1 << 16  # so few numbers of all samples aren't worth more than one operation


class Divisible(Protocol):
    """Gradients of which consecutive samples can be had without a copy."""

    @property
    def num_samples(self) -> int: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @abstractmethod
    def narrow(self, start: int, end: int) -> Divisible:
        """Return the gradients of the samples ``start..end-1``."""

    @abstractmethod
    def form(self, memory: Tensor | None) -> Tensor:
        """Return ``[B, *shape]``, in ``memory [>= B, *shape]`` if that is quicker: to get fresh memory takes time."""

    @abstractmethod
    def select(self, index: Tensor) -> Divisible: ...

    def instantiate(self) -> Tensor: ...


class Streamed(PerSample):
    """The gradients of ``whole``, a few at once.

    Args:
        whole: inputs and output gradients.
        numbers: how many a gradient has.
        kept: how many numbers ``whole`` keeps for a sample: blocks take no more than half as many as all samples do, or one sample.
    """

    def __init__(self, whole: Divisible, numbers: int, kept: int) -> None:
        self.whole, self._numbers, self._kept = whole, numbers, kept

    @staticmethod
    def is_worth(whole: PerSample, numbers: int) -> bool:
        """Return whether the gradients are so large that a block is worth the operations on it."""
        return whole.num_samples * numbers > _FEW

    @property
    def dtype(self) -> torch.dtype:
        return accumulation_dtype(self.whole.dtype)

    @property
    def num_samples(self) -> int:
        return self.whole.num_samples

    @property
    def method(self) -> str:
        return f"{INSTANTIATED}, a few at once"

    def blocks(self) -> Iterator[tuple[slice, Dense]]:
        """Yield consecutive samples and their gradients, until all have been. Those of one block are valid until the next."""
        room = min(_AT_ONCE, self.num_samples * self._kept // 2)
        few = _shared_out(max(1, room // max(1, self._numbers)))
        memory: Tensor | None = None
        for start in range(0, max(1, self.num_samples), few):
            end = min(start + few, self.num_samples)
            formed = self.whole.narrow(start, end).form(memory)
            if memory is None:  # no later block is larger
                memory = formed
            yield slice(start, end), Dense(formed)

    def square_norms(self) -> Tensor:
        return torch.cat([grads.square_norms() for _, grads in self.blocks()])

    def square_rooms(self) -> float:
        return lost(self.dtype, self._numbers)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        total: Tensor | None = None
        for which, grads in self.blocks():
            if total is None:
                total = grads.weighted_sum(self._weights(which, grads, factors))
            else:
                grads.add_to(total, self._weights(which, grads, factors))
        assert total is not None
        return total

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        for which, grads in self.blocks():
            grads.add_to(total, self._weights(which, grads, factors))

    def _weights(self, which: slice, grads: Dense, factors: Tensor) -> Tensor:
        """Return what to weigh the gradients of a block by."""
        del grads
        return factors[which]

    def instantiate(self) -> Tensor:
        return self.whole.instantiate()

    def select(self, index: Tensor) -> Streamed:
        return Streamed(self.whole.select(index), self._numbers, self._kept)


class FormedAgain(Streamed):
    """Gradients that are formed, a few at once, for their norms, and again for their sum: where that takes less than other ways.

    Another number of samples at once may round otherwise, in bfloat16 by much: the second time no gradient counts for more than
    its norm of the first time.
    """

    def __init__(self, whole: Divisible, numbers: int, kept: int, squares: Tensor | None = None) -> None:
        super().__init__(whole, numbers, kept)
        self._squares = super().square_norms() if squares is None else squares

    @property
    def method(self) -> str:
        return f"{INSTANTIATED} twice, a few at once"

    def square_norms(self) -> Tensor:
        return self._squares

    def select(self, index: Tensor) -> FormedAgain:
        return FormedAgain(self.whole.select(index), self._numbers, self._kept, self._squares[index])

    def _weights(self, which: slice, grads: Dense, factors: Tensor) -> Tensor:
        stated, now = self._squares[which], grads.square_norms()
        return factors[which] * torch.where(now > stated, stated / now, 1.0).sqrt()


def _shared_out(few: int) -> int:
    """Return how many samples to take at once, of at most ``few``: each of the CPU's threads multiplies one, and none waits."""
    threads = torch.get_num_threads()
    return few - few % threads if few > threads else few
