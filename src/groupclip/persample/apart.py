"""Per-sample gradients of parts of one tensor that have no entry in common: query, key and value of one matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .base import PerSample


class Apart(PerSample):
    """The sum of ``parts``, each of them gradients of the whole tensor that are zero where the others aren't.

    So squared norms add up, and no cross term is needed.
    """

    def __init__(self, parts: Sequence[PerSample]) -> None:
        self.parts = list(parts)

    @property
    def dtype(self) -> torch.dtype:
        return max((part.dtype for part in self.parts), key=lambda d: torch.finfo(d).eps)

    @property
    def num_samples(self) -> int:
        return self.parts[0].num_samples

    @property
    def method(self) -> str:
        return " and ".join(sorted({part.method for part in self.parts}))

    def square_norms(self) -> Tensor:
        return torch.stack([part.square_norms() for part in self.parts]).sum(dim=0)

    def square_rooms(self) -> Tensor | float:
        return sum(part.square_rooms() for part in self.parts)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        total = self.parts[0].weighted_sum(factors)
        for part in self.parts[1:]:
            total = total + part.weighted_sum(factors)
        return total

    def instantiate(self) -> Tensor:
        total = self.parts[0].instantiate()
        for part in self.parts[1:]:
            total = total + part.instantiate()
        return total

    def select(self, index: Tensor) -> Apart:
        return Apart([part.select(index) for part in self.parts])
