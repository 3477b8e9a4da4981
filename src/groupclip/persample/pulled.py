"""Gradients of a parameter that reached the batch through a tensor derived from it (``1 + w``, ``w.t()``, a chunk,
a position embedding without a batch dimension): pulled back through the derivation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import PerSample, weigh
from .dense import Dense
from .norms import INSTANTIATED, accumulation_dtype
from .outer import Outer

#: Of a float32 number in half precision: so many parts hold all its bits.
_PARTS = 3


@dataclass(frozen=True)
class View:
    """Says which entries of a parameter a view has, as torch describes views; ``offset`` from the parameter's first entry."""

    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def end(self) -> int:
        """One past its last entry."""
        return self.offset + 1 + sum((n - 1) * step for n, step in zip(self.size, self.stride, strict=True))


class Pulled(PerSample):
    """``J^T`` times the per-sample gradients of a derived tensor ``E = f(parameter, ..)``, with J the Jacobian of f.

    Args:
        upstream: per-sample gradients with respect to E.
        derived: E, with its autograd graph down to ``leaf``.
        leaf: a leaf that stands for the parameter in that graph.
        isometric: each entry of E is an entry of the parameter, another one for each (transpose, view, slice, cast), but for
            constants added: norms are those of ``upstream``.
    """

    def __init__(self, upstream: PerSample, derived: Tensor, leaf: Tensor, isometric: bool) -> None:
        self.upstream, self.derived, self.leaf, self.isometric = upstream, derived, leaf, isometric
        self._own: Dense | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.upstream.dtype

    @property
    def num_samples(self) -> int:
        return self.upstream.num_samples

    @property
    def method(self) -> str:
        return self.upstream.method if self.isometric else INSTANTIATED

    @property
    def view(self) -> View | None:
        """Which entries of the parameter E is; None if E isn't a view of it."""
        if not self.isometric or self.derived.numel() == 0:
            return None
        if self.derived.untyped_storage().data_ptr() != self.leaf.untyped_storage().data_ptr():
            return None
        offset = self.derived.storage_offset() - self.leaf.storage_offset()
        return View(int(offset), tuple(self.derived.shape), self.derived.stride())

    def unpulled(self) -> PerSample:
        """Return the same gradients, with respect to the parameter itself where E is no more than that, or its transpose."""
        view, shape, stride = self.view, tuple(self.leaf.shape), self.leaf.stride()
        if view == View(0, shape, stride):
            return self.upstream
        if view == View(0, shape[::-1], stride[::-1]) and isinstance(self.upstream, Outer):
            return self.upstream.transposed()
        return self

    def of(self, upstream: PerSample) -> Pulled:
        """Other gradients pulled back in the same way."""
        return Pulled(upstream, self.derived, self.leaf, self.isometric)

    @property
    def _pulled_one_by_one(self) -> Dense:
        """The gradients pulled one by one, for a tensor that is computed with: J may take a huge gradient to a small one
        (``w - w.mean()``), whose factor is large. The sum before it was pulled would lose the other samples in the terms that
        J takes away.
        """
        if self._own is None:
            self._own = Dense(self.instantiate())
        return self._own

    def square_norms(self) -> Tensor:
        return (self.upstream if self.isometric else self._pulled_one_by_one).square_norms()

    def square_rooms(self) -> Tensor | float:
        return (self.upstream if self.isometric else self._pulled_one_by_one).square_rooms()

    def weighted_sum(self, factors: Tensor) -> Tensor:
        if not self.isometric:
            return self._pulled_one_by_one.weighted_sum(factors)
        total = self.upstream.weighted_sum(factors).view(self.derived.shape)
        if self.derived.dtype == accumulation_dtype(self.derived.dtype):
            return self._pull(total.to(self.derived.dtype), batched=False)
        pulled = torch.zeros(self.leaf.shape, dtype=total.dtype, device=total.device)
        for _ in range(_PARTS):  # entries that are moved are moved as they are
            part = total.to(self.derived.dtype)
            pulled += self._pull(part, batched=False)
            total = total - part
        return pulled

    def instantiate(self) -> Tensor:
        cotangents = self.upstream.instantiate().to(self.derived.dtype)
        return self._pull(cotangents.view(self.num_samples, *self.derived.shape), batched=True)

    def _pull(self, cotangent: Tensor, batched: bool) -> Tensor:
        if batched and cotangent.shape[0] == 0:
            return cotangent.new_zeros(0, *self.leaf.shape)
        try:
            grad = self._differentiate(cotangent, batched)
        except RuntimeError:
            if not batched:
                raise
            # Not every backward of torch's can be vectorised (pad_packed_sequence, say): then one sample after another.
            return torch.stack([self._pull(one, batched=False) for one in cotangent])
        if grad is not None:
            return grad
        shape = (cotangent.shape[0], *self.leaf.shape) if batched else self.leaf.shape
        return cotangent.new_zeros(shape)

    def _differentiate(self, cotangent: Tensor, batched: bool) -> Tensor | None:
        with torch.enable_grad():
            (grad,) = torch.autograd.grad(
                self.derived, self.leaf, cotangent, retain_graph=True, allow_unused=True, is_grads_batched=batched
            )
        return grad if grad is None or grad.layout is torch.strided else grad.to_dense()

    def select(self, index: Tensor) -> Pulled:
        chosen = self.of(self.upstream.select(index))
        if self._own is not None:  # pulled again, beside others, rounding might leave another remainder than was normed
            chosen._own = self._own.select(index)
        return chosen

    def settle(self, method: str) -> PerSample:
        if self.isometric:
            return self.of(self.upstream.settle(method))
        return Dense(self.instantiate()).settle(method)


class Row(PerSample):
    """Gradients of a tensor ``[B, ..]`` whose row i is used by sample i alone: ``rows [B, ..]``, elsewhere zero."""

    def __init__(self, rows: Tensor, index: Tensor, length: int) -> None:
        self.rows, self.index, self.length = rows, index, length

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.dtype

    @property
    def num_samples(self) -> int:
        return self.rows.shape[0]

    def square_norms(self) -> Tensor:
        return Dense(self.rows).square_norms()

    def square_rooms(self) -> float:
        return Dense(self.rows).square_rooms()

    def weighted_sum(self, factors: Tensor) -> Tensor:
        weighted = weigh(self.rows, factors)
        return weighted.new_zeros(self.length, *self.rows.shape[1:]).index_copy(0, self.index, weighted)

    def instantiate(self) -> Tensor:
        out = self.rows.new_zeros(self.num_samples, self.length, *self.rows.shape[1:])
        out[torch.arange(self.num_samples, device=out.device), self.index] = self.rows
        return out

    def select(self, index: Tensor) -> Row:
        return Row(self.rows.index_select(0, index), self.index.index_select(0, index), self.length)
