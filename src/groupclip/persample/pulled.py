"""Gradients of a parameter that reached the batch through a tensor derived from it (``1 + w``, ``w.t()``, a chunk,
a position embedding without a batch dimension): pulled back through the derivation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..norms import INSTANTIATED
from .base import PerSample, weigh
from .dense import Dense


class Pulled(PerSample):
    """``J^T`` times the per-sample gradients of a derived tensor ``E = f(parameter, ..)``, with J the Jacobian of f.

    Args:
        upstream: per-sample gradients with respect to E.
        derived: E, with its autograd graph down to ``leaf``.
        leaf: a leaf that stands for the parameter in that graph.
        isometric: f only moves entries (transpose, view, cast) or adds constants: norms are those of ``upstream``.
    """

    def __init__(self, upstream: PerSample, derived: Tensor, leaf: Tensor, isometric: bool) -> None:
        self.upstream, self.derived, self.leaf, self.isometric = upstream, derived, leaf, isometric

    @property
    def dtype(self) -> torch.dtype:
        return self.upstream.dtype

    @property
    def num_samples(self) -> int:
        return self.upstream.num_samples

    @property
    def method(self) -> str:
        return self.upstream.method if self.isometric else INSTANTIATED

    def square_norms(self) -> Tensor:
        if self.isometric:
            return self.upstream.square_norms()
        return Dense(self.instantiate()).square_norms()

    def weighted_sum(self, factors: Tensor) -> Tensor:
        # f's derivative is linear, so the weighted sum is pulled back once for all samples.
        cotangent = self.upstream.weighted_sum(factors).to(self.derived.dtype)
        return self._pull(cotangent.view(self.derived.shape), batched=False)

    def instantiate(self) -> Tensor:
        cotangents = self.upstream.instantiate().to(self.derived.dtype)
        return self._pull(cotangents.view(self.num_samples, *self.derived.shape), batched=True)

    def _pull(self, cotangent: Tensor, batched: bool) -> Tensor:
        if batched and cotangent.shape[0] == 0:
            return cotangent.new_zeros(0, *self.leaf.shape)
        with torch.enable_grad():
            (grad,) = torch.autograd.grad(
                self.derived, self.leaf, cotangent, retain_graph=True, allow_unused=True, is_grads_batched=batched
            )
        if grad is not None:
            return grad
        shape = (cotangent.shape[0], *self.leaf.shape) if batched else self.leaf.shape
        return cotangent.new_zeros(shape)

    def select(self, index: Tensor) -> Pulled:
        return Pulled(self.upstream.select(index), self.derived, self.leaf, self.isometric)

    def settle(self, method: str) -> PerSample:
        if self.isometric:
            return Pulled(self.upstream.settle(method), self.derived, self.leaf, True)
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

    def weighted_sum(self, factors: Tensor) -> Tensor:
        weighted = weigh(self.rows, factors)
        return self.rows.new_zeros(self.length, *self.rows.shape[1:]).index_copy(0, self.index, weighted)

    def instantiate(self) -> Tensor:
        out = self.rows.new_zeros(self.num_samples, self.length, *self.rows.shape[1:])
        out[torch.arange(self.num_samples, device=out.device), self.index] = self.rows
        return out

    def select(self, index: Tensor) -> Row:
        return Row(self.rows.index_select(0, index), self.index.index_select(0, index), self.length)
