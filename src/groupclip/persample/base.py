"""What every form of per-sample gradients can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache

import torch
from torch import Tensor

from .norms import accumulation_dtype


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
        """Return ``[B]`` squared norms, in float32 or better, exact up to rounding and never negative."""

    @abstractmethod
    def square_rooms(self) -> Tensor | float:
        """Return room for rounding and underflow, as a squared length: ``[B]``, or one number for all samples.

        What a sample adds to the weighted sum is no longer than its factor times (the root of its squared norm plus the root
        of this), to a few roundings of the dtype. Known when norms are.
        """

    @abstractmethod
    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Return ``sum_i factors[i] * gradient_i``, in the shape of the tensor and in float32 or better. ``factors`` is ``[B]``.

        A sample whose terms cancel adds their sum, not its terms: huge ones would round away what the others have added.
        """

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        """Add the weighted sum to ``total``, in place: of the tensor's shape, or flat."""
        total.add_(self.weighted_sum(factors).reshape(total.shape))

    @abstractmethod
    def instantiate(self) -> Tensor:
        """Return ``[B, *shape]``: the gradients themselves."""

    @abstractmethod
    def select(self, index: Tensor) -> PerSample:
        """Return the gradients of the samples ``index`` (``[K]`` integers) alone."""

    def settle(self, method: str) -> PerSample:
        """Return the form to keep until the group ends, its norms computed. ``method`` is one of ``norms.METHODS``."""
        del method
        return self


def weighing_rounding(x: Tensor) -> float:
    """Return by how much tensor cores round an operand of :func:`wide_product` after it was weighed, beyond float32."""
    return 2.0**-9 if x.is_cuda and x.dtype == torch.bfloat16 else 0.0


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a @ b`` in float32 or better, also of half-precision factors.

    A sum over samples that is rounded to half precision moves by far more than R when one sample comes or goes: by an ulp of
    the whole sum, wherever it lies on a border. Each sample's own rounding is within its threshold, and the sum keeps it.
    """
    wide = accumulation_dtype(a.dtype)
    if a.is_cuda and wide != a.dtype == b.dtype:  # tensor cores sum in float32 anyway
        return torch.mm(a, b, out_dtype=wide)
    return a.to(wide) @ b.to(wide)


def rounds_products(a: Tensor, b: Tensor) -> bool:
    """Return whether products of the two are rounded to bfloat16, as bfloat16 autocast has them: on a CPU that multiplies it.

    There is no product in torch whose operands alone are bfloat16, on the CPU; and one in float32 takes two to eight times as long.
    """
    return a.dtype == b.dtype == torch.bfloat16 and a.device.type == "cpu" and _multiplies_bfloat16()


@cache
def _multiplies_bfloat16() -> bool:
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def formed(a: Tensor, b: Tensor, memory: Tensor | None) -> Tensor:
    """Return ``a @ b`` of each sample, ``[B, ..]``, in float32 or better: gradients that are to be normed as they come out.

    Products in bfloat16 are of bfloat16's precision, and are normed, weighed and summed in float32: a sample's rounding is its own.

    Args:
        memory: ``[>= B, ..]`` for the result, if that is quicker: to get fresh memory takes time.
    """
    wide = accumulation_dtype(a.dtype)
    out = None if memory is None else memory[: len(a)]
    if a.is_cuda and wide != a.dtype == b.dtype:
        return torch.bmm(a, b, out_dtype=wide)
    if rounds_products(a, b):
        rounded = torch.bmm(a, b)
        return rounded.to(wide) if out is None else out.copy_(rounded)
    return torch.bmm(a.to(wide), b.to(wide), out=out)


def weigh(x: Tensor, factors: Tensor) -> Tensor:
    """Return ``x [B, ..]`` with sample i scaled by ``factors[i]``, in float32 or better.

    In half precision the factor may overflow, a small product has few bits left or none, and the threshold would not hold.
    """
    wide = accumulation_dtype(x.dtype)
    return x.to(wide) * factors.to(wide).view(-1, *[1] * (x.dim() - 1))
