"""Per-sample gradients that are small, or that have been instantiated: biases, norms, broadcasts, and any other."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PerSample
from .norms import INSTANTIATED, accumulation_dtype, lost, square_sums


class Dense(PerSample):
    """``grads [B, *shape]`` as one tensor."""

    def __init__(self, grads: Tensor) -> None:
        self.grads = grads
        self._square_norms: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.grads.dtype

    @property
    def num_samples(self) -> int:
        return self.grads.shape[0]

    @property
    def method(self) -> str:
        return INSTANTIATED

    def square_norms(self) -> Tensor:
        if self._square_norms is None:
            self._square_norms = square_sums(self.grads)
        return self._square_norms

    def square_rooms(self) -> float:
        return lost(accumulation_dtype(self.grads.dtype), self.grads[0].numel() if len(self.grads) else 0)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        grads = self.grads.to(accumulation_dtype(self.grads.dtype))
        return torch.mv(_rows(grads).t(), factors.to(grads.dtype)).view(grads.shape[1:])

    def instantiate(self) -> Tensor:
        return self.grads

    def select(self, index: Tensor) -> Dense:
        return Dense(self.grads.index_select(0, index))

    def settle(self, method: str) -> Dense:
        del method
        self.square_norms()
        return self


def _rows(grads: Tensor) -> Tensor:
    """``[B, n]``, for parameters without dimensions (a learnt temperature) too."""
    return grads.flatten(1) if grads.dim() > 1 else grads.unsqueeze(1)
