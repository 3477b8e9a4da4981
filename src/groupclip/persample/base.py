"""What every form of per-sample gradients can do."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ..norms import accumulation_dtype


class PerSample(ABC):
    """The gradients of B samples with respect to one tensor of some shape.

    Book-Keeping needs two things of them: the squared norm of each, and, once the clip factors are known, their
    weighted sum. How the gradients are kept in between is up to the form.
    """

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The dtype in which the gradients are weighed and summed."""

    @property
    @abstractmethod
    def num_samples(self) -> int:
        """B."""

    @property
    def method(self) -> str:
        """How the norms are computed, in a word or two."""
        return "closed form"

    @abstractmethod
    def square_norms(self) -> Tensor:
        """``[B]`` squared norms, in float32 or better, exact up to rounding and never negative."""

    @abstractmethod
    def weighted_sum(self, factors: Tensor) -> Tensor:
        """``sum_i factors[i] * gradient_i``, in the shape of the tensor and in float32 or better. ``factors`` is ``[B]``."""

    @abstractmethod
    def instantiate(self) -> Tensor:
        """``[B, *shape]``: the gradients themselves."""

    @abstractmethod
    def select(self, index: Tensor) -> PerSample:
        """The gradients of the samples ``index`` (``[K]`` integers) alone."""

    def settle(self, method: str) -> PerSample:
        """The form to keep until the group ends, its norms computed. ``method`` is one of ``norms.METHODS``."""
        del method
        return self


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` in float32 or better, also of half-precision factors.

    A sum over samples that is rounded to half precision moves by far more than R when one sample comes or goes: by an ulp of
    the whole sum, wherever it lies on a border. Each sample's own rounding is within its threshold, and the sum keeps it.
    """
    wide = accumulation_dtype(a.dtype)
    if a.is_cuda and wide != a.dtype:  # tensor cores sum in float32 anyway
        return torch.mm(a, b, out_dtype=wide)
    return a.to(wide) @ b.to(wide)


def weigh(x: Tensor, factors: Tensor) -> Tensor:
    """``x [B, ..]`` with sample i scaled by ``factors[i]``: multiplied in float32 or better, then in the dtype of x.

    In half precision the factor itself may overflow or lose its last bits, and the threshold would not hold.
    """
    weights = factors.to(accumulation_dtype(x.dtype)).view(-1, *[1] * (x.dim() - 1))
    return (x * weights).to(x.dtype)
