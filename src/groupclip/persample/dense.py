"""Per-sample gradients that are small, or that have been instantiated: biases, norms, broadcasts, and any other."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PerSample
from .norms import INSTANTIATED, WIDE, accumulation_dtype, lost, square_sums

#: Numbers of all samples up to which gradients are normed and summed together with those of other parameters (:mod:`.small`).
SMALL = 1 << 15


class Dense(PerSample):
    """``grads [B, *shape]`` as one tensor."""

    def __init__(self, grads: Tensor) -> None:
        self.grads = grads
        self.is_small = grads.numel() <= SMALL  # worth laying side by side with others
        self._wide = WIDE.get(grads.dtype) or accumulation_dtype(grads.dtype)  # asked of every parameter
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
        return lost(self._wide, self.grads.shape[1:].numel())

    def weighted_sum(self, factors: Tensor) -> Tensor:
        if self.grads.shape[0] == 1:  # a product with one row is slower than a product of numbers
            return self.grads[0].to(self._wide) * factors.to(self._wide)
        rows = self.rows().to(self._wide)
        return torch.mv(rows.t(), factors.to(self._wide)).view(self.grads.shape[1:])

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        """Add the weighted sum to ``total``, flat or in the shape of a gradient: in its dtype, and mostly without a copy."""
        factors = factors.to(total.dtype)
        if self.grads.shape[0] == 1:
            total.addcmul_(self.grads[0].to(total.dtype).reshape(total.shape), factors)
        elif total.is_contiguous():
            total.view(-1).addmv_(self.rows().to(total.dtype).t(), factors)
        else:
            total.add_(self.weighted_sum(factors).view(total.shape))

    def instantiate(self) -> Tensor:
        return self.grads

    def select(self, index: Tensor) -> Dense:
        return Dense(self.grads.index_select(0, index))

    def settle(self, method: str) -> Dense:
        del method
        if not self.is_small:
            self.square_norms()
        return self

    def rows(self) -> Tensor:
        """Return ``[B, n]``, for parameters without dimensions (a learnt temperature) too."""
        grads = self.grads
        return grads if grads.dim() == 2 else grads.flatten(1) if grads.dim() > 1 else grads.unsqueeze(1)
