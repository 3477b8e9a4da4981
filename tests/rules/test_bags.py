"""``embedding_bag``: sums, means and maxima of rows of a table, in bags of equal and of unequal length: exact, by a rule."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from check_engine import inexact
from check_rules import B, ids, randn, slow_operations

MODES = ["sum", "mean", "max"]
LENGTHS = torch.tensor([2, 5, 0, 4, 1, 3])


class Bags(nn.Module):
    """ids [B, N] (and weights [B, N]) as bags of equal length."""

    def __init__(self, mode: str, padding: int | None = None) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(5, 3, mode=mode, padding_idx=padding)
        self.weigh = nn.Linear(1, 1)

    def forward(self, ids: Tensor, weights: Tensor | None = None) -> Tensor:
        if weights is not None:
            weights = torch.tanh(self.weigh(weights.unsqueeze(-1))).squeeze(-1)
        return torch.tanh(self.bag(ids, per_sample_weights=weights))


@pytest.mark.parametrize("padding", [None, 0, -1])
@pytest.mark.parametrize("mode", MODES)
def test_bags_of_equal_length(mode: str, padding: int | None) -> None:
    """Five rows, six ids: some come twice."""
    for size in (0, 1, 3, 6):
        assert inexact(Bags(mode, padding), (ids(5, size, 6),)) == [], size
        if size == B:
            assert slow_operations(Bags(mode, padding), (ids(5, size, 6),)) == set()


@pytest.mark.parametrize("padding", [None, 2])
def test_weights_of_each_id(padding: int | None) -> None:
    """They come from the batch, through a layer of their own: they need gradients too."""
    assert inexact(Bags("sum", padding), (ids(5, B, 6), randn(B, 6))) == []
    assert slow_operations(Bags("sum", padding), (ids(5, B, 6), randn(B, 6))) == set()


class Ragged(nn.Module):
    """Samples with as many ids as ``lengths [B]`` says, as one list with offsets."""

    def __init__(self, mode: str, padding: int | None, last: bool, weights: bool) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(5, 3, mode=mode, padding_idx=padding, include_last_offset=last)
        self.last, self.weights, self.weigh = last, weights, nn.Linear(1, 1)

    def forward(self, ids: Tensor, lengths: Tensor, weights: Tensor) -> Tensor:
        given = torch.arange(ids.shape[1]) < lengths[:, None]
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        weighed = torch.tanh(self.weigh(weights.unsqueeze(-1))).squeeze(-1)[given] if self.weights else None
        return torch.tanh(self.bag(ids[given], offsets if self.last else offsets[:-1], per_sample_weights=weighed))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("mode", "padding", "last", "weights"),
    [
        case
        for case in itertools.product(MODES, (None, 1), (True, False), (True, False))
        if case[0] == "sum" or not case[3]
    ],
)
def test_bags_of_unequal_length(mode: str, padding: int | None, last: bool, weights: bool) -> None:
    """One bag is empty; torch gives it zeros."""
    for size in (1, 3, 6):
        model = Ragged(mode, padding, last, weights)
        assert inexact(model, (ids(5, size, 5), LENGTHS[:size], randn(size, 5))) == [], size


@pytest.mark.parametrize("mode", MODES)
def test_unequal_bags_by_a_rule(mode: str) -> None:
    batch = (ids(5, 6, 5), LENGTHS, randn(6, 5))
    assert slow_operations(Ragged(mode, 1, False, False), batch) == set()


class Calls(nn.Module):
    """The function, in the ways that it is called; and one table in a bag, in a look-up and as a head."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.table, self.way = nn.Parameter(torch.zeros(5, 3)), way

    def forward(self, ids: Tensor) -> Tensor:
        match self.way:
            case "keywords":
                return torch.tanh(F.embedding_bag(weight=self.table, input=ids, mode="mean"))
            case "default mode":
                return torch.tanh(F.embedding_bag(ids, self.table))
            case "in words":  # [B * W, C]: several bags of each sample
                return torch.tanh(F.embedding_bag(ids.unflatten(1, (2, 3)).flatten(0, 1), self.table)).unflatten(
                    0, (-1, 2)
                )
            case "a constant":
                return torch.tanh(
                    F.embedding_bag(torch.tensor([[0, 1], [2, 2]]), self.table, mode="sum").sum(0) * ids.shape[1]
                ) * (F.embedding(ids, self.table).sum(1))
            case "a slice":
                return torch.tanh(F.embedding_bag(ids % 2, self.table[1:3], mode="sum"))
            case _:
                x = torch.tanh(F.embedding_bag(ids, self.table, mode="sum") + F.embedding(ids[:, 0], self.table))
                return F.linear(x, self.table)


@pytest.mark.parametrize("way", ["keywords", "default mode", "in words", "a constant", "a slice", "tied"])
def test_called_as_a_function(way: str) -> None:
    for size in (1, 2, 3):
        assert inexact(Calls(way), (ids(5, size, 6),)) == [], size


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_bags_that_mix_samples_are_refused(options: dict[str, Any]) -> None:
    from groupclip.errors import UnsupportedOperation

    with pytest.raises(UnsupportedOperation, match=r"Leave .* out"):
        slow_operations(nn.EmbeddingBag(5, 3, **options), (ids(5, B, 6),))
