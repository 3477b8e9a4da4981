"""Per-sample gradients of a table of which each sample reads some rows, and of a table tied to an output layer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..norms import accumulation_dtype
from .base import PerSample, weigh
from .outer import Outer


class Lookup(PerSample):
    """Gradients of an embedding table ``[V, d]``: row ``ids[i, t]`` receives ``g[i, t]``.

    Args:
        ids: ``[B, T]`` integers below V; g: ``[B, T, d]``, already zero where the row takes no gradient (padding).
        rows: V.
    """

    def __init__(self, ids: Tensor, g: Tensor, rows: int) -> None:
        self.ids, self.g, self.rows = ids, g, rows
        self._square_norms: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.g.dtype

    @property
    def num_samples(self) -> int:
        return self.ids.shape[0]

    def square_norms(self) -> Tensor:
        """The gradients of one sample's equal tokens are added first, then squared: O(B T d), no T x T mask."""
        if self._square_norms is None:
            wide = accumulation_dtype(self.g.dtype)
            batch, dim = self.num_samples, self.g.shape[-1]
            owner = torch.arange(batch, device=self.ids.device).unsqueeze(1)
            cells, where = torch.unique(owner * self.rows + self.ids, return_inverse=True)
            sums = torch.zeros(len(cells), dim, dtype=wide, device=self.g.device)
            sums.index_add_(0, where.flatten(), self.g.flatten(0, 1).to(wide))
            squares = torch.zeros(batch, dtype=wide, device=self.g.device)
            self._square_norms = squares.index_add_(0, cells // self.rows, sums.square_().sum(dim=1))
        return self._square_norms

    def weighted_sum(self, factors: Tensor) -> Tensor:
        wide = accumulation_dtype(self.g.dtype)
        weighted = weigh(self.g, factors).to(wide)
        table = torch.zeros(self.rows, self.g.shape[-1], dtype=wide, device=self.g.device)
        return table.index_add_(0, self.ids.flatten(), weighted.flatten(0, 1))

    def instantiate(self) -> Tensor:
        batch, dim = self.num_samples, self.g.shape[-1]
        wide = accumulation_dtype(self.g.dtype)
        owner = torch.arange(batch, device=self.ids.device).unsqueeze(1)
        tables = torch.zeros(batch * self.rows, dim, dtype=wide, device=self.g.device)
        tables.index_add_(0, (owner * self.rows + self.ids).flatten(), self.g.flatten(0, 1).to(wide))
        return tables.view(batch, self.rows, dim)

    def select(self, index: Tensor) -> Lookup:
        return Lookup(self.ids.index_select(0, index), self.g.index_select(0, index), self.rows)

    def settle(self, method: str) -> Lookup:
        del method
        self.square_norms()
        return self


def join_lookups(uses: list[Lookup]) -> Lookup:
    """Several lookups in one table are one lookup of more positions."""
    return Lookup(torch.cat([u.ids for u in uses], dim=1), torch.cat([u.g for u in uses], dim=1), uses[0].rows)


class Tied(PerSample):
    """A table ``[V, d]`` that is looked up and also the weight of a linear layer (tied embedding and head).

    The gradient of a sample is the sum of the two, so its squared norm has the cross term
    ``2 <G_lookup, G_linear> = 2 sum_{s,t} g_linear[t, ids[s]] <a[t], g_lookup[s]>``.
    """

    def __init__(self, lookup: Lookup, linear: Outer) -> None:
        self.lookup, self.linear = lookup, linear
        self._square_norms: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.linear.dtype

    @property
    def num_samples(self) -> int:
        return self.lookup.num_samples

    @property
    def method(self) -> str:
        return f"{self.linear.method}, with the cross term"

    def square_norms(self) -> Tensor:
        if self._square_norms is None:
            a, g = self.linear.a, self.linear.g  # [B, T, d], [B, T, V] for a weight [V, d]
            if self.linear.inputs_first:
                a, g = g, a  # the transposed use of a [V, d] table has V inputs and d outputs
            wide = accumulation_dtype(a.dtype)
            ids = self.lookup.ids.unsqueeze(1).expand(-1, g.shape[1], -1)  # [B, T, S]
            inner = torch.bmm(a.to(wide), self.lookup.g.to(wide).transpose(1, 2))  # [B, T, S]
            cross = (g.gather(2, ids).to(wide) * inner).sum(dim=(1, 2))
            squares = self.lookup.square_norms() + self.linear.square_norms() + 2 * cross
            # The cross term may cancel nearly all (|x + y|^2 with y near -x): then the rounding of the parts shows.
            parts = self.lookup.square_norms() + self.linear.square_norms()
            doubtful = (squares < 1e-3 * parts).nonzero().flatten()
            for i in doubtful.unsqueeze(1):  # one at a time: a table a sample is large
                squares[i] = self.select(i).instantiate().double().square().sum().to(wide)
            self._square_norms = squares
        return self._square_norms

    def weighted_sum(self, factors: Tensor) -> Tensor:
        return self.linear.weighted_sum(factors) + self.lookup.weighted_sum(factors)

    def instantiate(self) -> Tensor:
        return self.lookup.instantiate() + self.linear.instantiate()

    def select(self, index: Tensor) -> Tied:
        return Tied(self.lookup.select(index), self.linear.select(index))
