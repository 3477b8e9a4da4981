"""Per-sample gradients of a table of which each sample reads some rows, and of a table tied to an output layer."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PerSample, weigh
from .cancelling import MayCancel
from .norms import CANCELLATION, accumulation_dtype, lost, square_sums
from .outer import Outer


class Lookup(PerSample):
    """Gradients of an embedding table ``[V, d]``: row ``ids[i, t]`` receives ``g[i, t]``.

    Args:
        ids: ``[B, T]`` integers below V; g: ``[B, T, d]``, already zero where the row takes no gradient (padding).
        rows: V.
    """

    def __init__(self, ids: Tensor, g: Tensor, rows: int) -> None:
        self.ids, self.g, self.rows = ids, g, rows
        self._dtype, self._added_up = g.dtype, False
        self._square_norms: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def num_samples(self) -> int:
        return self.ids.shape[0]

    def _add_up(self) -> None:
        """Give the first of a sample's equal tokens the gradients of them all, and the others none, in float32 or better.

        So a sample's terms meet each other before they meet those of other samples, and what is normed is what is added.
        O(B T d), no T x T mask.
        """
        if self._added_up:
            return
        wide = accumulation_dtype(self.g.dtype)
        batch, positions, dim = self.g.shape
        if positions > 1:
            # Sorted, equal tokens lie side by side, the first one first.
            ids, order = self.ids.sort(dim=1, stable=True)
            places = torch.arange(positions, device=ids.device).expand(batch, -1)
            new = torch.ones_like(ids, dtype=torch.bool)
            new[:, 1:] = ids[:, 1:] != ids[:, :-1]
            runs = torch.where(new, places, 0).cummax(dim=1).values
            first = torch.empty_like(order).scatter_(1, order, order.gather(1, runs))
            first += torch.arange(0, batch * positions, positions, device=ids.device).unsqueeze(1)
            sums = torch.zeros(batch * positions, dim, dtype=wide, device=self.g.device)
            self.g = sums.index_add_(0, first.flatten(), self.g.flatten(0, 1).to(wide)).view(self.g.shape)
        else:
            self.g = self.g.to(wide)
        self._added_up = True

    def square_norms(self) -> Tensor:
        if self._square_norms is None:
            self._add_up()
            self._square_norms = square_sums(self.g)
        return self._square_norms

    def square_rooms(self) -> float:
        return lost(accumulation_dtype(self._dtype), self.g.shape[1] * self.g.shape[2])

    def weighted_sum(self, factors: Tensor) -> Tensor:
        self._add_up()
        table = torch.zeros(self.rows, self.g.shape[-1], dtype=self.g.dtype, device=self.g.device)
        return table.index_add_(0, self.ids.flatten(), weigh(self.g, factors).flatten(0, 1))

    def instantiate(self) -> Tensor:
        batch, dim = self.num_samples, self.g.shape[-1]
        wide = accumulation_dtype(self.g.dtype)
        owner = torch.arange(batch, device=self.ids.device).unsqueeze(1)
        tables = torch.zeros(batch * self.rows, dim, dtype=wide, device=self.g.device)
        tables.index_add_(0, (owner * self.rows + self.ids).flatten(), self.g.flatten(0, 1).to(wide))
        return tables.view(batch, self.rows, dim)

    def select(self, index: Tensor) -> Lookup:
        chosen = Lookup(self.ids.index_select(0, index), self.g.index_select(0, index), self.rows)
        chosen._dtype, chosen._added_up = self._dtype, self._added_up
        return chosen

    def settle(self, method: str) -> Lookup:
        del method
        self.square_norms()
        return self


def join_lookups(uses: list[Lookup]) -> Lookup:
    """Join several lookups in one table into one lookup of more positions."""
    return Lookup(torch.cat([u.ids for u in uses], dim=1), torch.cat([u.g for u in uses], dim=1), uses[0].rows)


class Tied(MayCancel):
    """A table ``[V, d]`` that is looked up and also the weight of a linear layer (tied embedding and head).

    The gradient of a sample is the sum of the two, so its squared norm has the cross term
    ``2 <G_lookup, G_linear> = 2 sum_{s,t} g_linear[t, ids[s]] <a[t], g_lookup[s]>``.
    """

    def __init__(self, lookup: Lookup, linear: Outer) -> None:
        self.lookup, self.linear = lookup, linear

    @property
    def dtype(self) -> torch.dtype:
        return self.linear.dtype

    @property
    def num_samples(self) -> int:
        return self.lookup.num_samples

    @property
    def method(self) -> str:
        return f"{self.linear.method}, with the cross term"

    def _computed(self) -> tuple[Tensor, Tensor]:
        parts = self.lookup.square_norms() + self.linear.square_norms()
        a, g = self.linear.a, self.linear.g  # [B, T, d], [B, T, V] for a weight [V, d]
        if self.linear.inputs_first:
            a, g = g, a  # the transposed use of a [V, d] table has V inputs and d outputs
        wide = accumulation_dtype(a.dtype)
        a, up = a.to(wide), self.lookup.g.to(wide)
        ids = self.lookup.ids.unsqueeze(1).expand(-1, g.shape[1], -1)  # [B, T, S]
        read = g.gather(2, ids).to(wide)
        cross = (read * torch.bmm(a, up.transpose(1, 2))).sum(dim=(1, 2))
        # What the terms of the cross term amount to without their signs.
        lengths = torch.linalg.vector_norm(a, dim=2).unsqueeze(1), torch.linalg.vector_norm(up, dim=2).unsqueeze(2)
        size = torch.bmm(torch.bmm(lengths[0], read.abs()), lengths[1]).flatten()
        squares = parts + 2 * cross
        eps = torch.finfo(wide).eps / 2
        off = eps * (4 + a.shape[2] ** 0.5 / 2) * (parts + 2 * size)
        rooms = off.double().square() / squares.double().clamp(min=torch.finfo(wide).tiny)
        rooms = rooms + self.lookup.square_rooms() + self.linear.square_rooms()
        # The cross term may cancel nearly all (|x + y|^2 with y near -x): then the rounding of the parts shows.
        doubtful = squares < CANCELLATION / 3 * (parts + 2 * size)
        return self._set_apart(doubtful, squares, rooms)

    @property
    def _numbers(self) -> int:
        return self.lookup.rows * self.lookup.g.shape[2]

    def _exact(self, which: Tensor) -> Tensor:
        lookup, linear = self.lookup.select(which), self.linear.select(which)
        lookup.g = lookup.g.double()
        return lookup.instantiate() + Outer(linear.a.double(), linear.g.double(), linear.inputs_first).instantiate()

    def _product(self, factors: Tensor) -> Tensor:
        return self.linear.weighted_sum(factors) + self.lookup.weighted_sum(factors)

    def instantiate(self) -> Tensor:
        return self.lookup.instantiate() + self.linear.instantiate()

    def select(self, index: Tensor) -> Tied:
        chosen = Tied(self.lookup.select(index), self.linear.select(index))
        return chosen._knowing(self, index)
