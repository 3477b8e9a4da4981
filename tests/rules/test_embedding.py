"""Tables that are looked up, once, twice, padded, in bags, and tied to a head: exact."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from check_engine import inexact
from check_rules import METHODS, B, ids


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("padding", [None, 0, 3, -1])
@pytest.mark.parametrize("shape", [(B,), (B, 1), (B, 5), (B, 2, 4)])
def test_embeddings(shape: tuple[int, ...], padding: int | None, method: str) -> None:
    """Few ids: some come twice in a sample, some never, some are padding."""
    model = nn.Sequential(nn.Embedding(4, 3, padding_idx=padding), nn.Tanh(), nn.Linear(3, 2))
    assert inexact(model, (ids(4, *shape),), methods=method) == []


@pytest.mark.parametrize("sparse", [True, False])
def test_embedding_gradients_are_dense(sparse: bool) -> None:
    """Noise is dense, so the gradient that comes out is."""
    assert inexact(nn.Sequential(nn.Embedding(6, 3, sparse=sparse), nn.Tanh()), (ids(6, B, 4),)) == []


def test_a_sparse_table_of_positions() -> None:
    """It is looked up before it meets the samples, and its gradient is pulled back."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.last = nn.Embedding(6, 3, sparse=True), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x * self.table(torch.tensor([0, 2, 2, 5])))

    assert inexact(Positions(), (torch.randn(B, 4, 3),)) == []


class TwoTables(nn.Module):
    """Words, segments and one table twice; a padding that is padding in one look-up and a word in the other."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.segments = nn.Embedding(6, 3), nn.Embedding(2, 3)

    def forward(self, words: Tensor, segments: Tensor) -> Tensor:
        again = F.embedding(words.flip(1), self.words.weight, padding_idx=2)
        return torch.tanh(self.words(words) + self.segments(segments) * again)


def test_one_table_looked_up_twice() -> None:
    assert inexact(TwoTables(), (ids(6, B, 5), ids(2, B, 5))) == []


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags(mode: str) -> None:
    model = nn.Sequential(nn.EmbeddingBag(6, 3, mode=mode), nn.Tanh())
    assert inexact(model, (ids(6, B, 5),)) == []


class TiedHead(nn.Module):
    """A table that is looked up and is the weight of the head, in one of the ways that models write it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.words, self.way, self.bias = nn.Embedding(7, 4), way, nn.Parameter(torch.zeros(7))

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.tanh(self.words(tokens))
        table = self.words.weight
        match self.way:
            case "linear":
                return F.linear(x, table, self.bias)
            case "transposed":
                return x @ table.t() + self.bias
            case "einsum":
                return torch.einsum("btd,vd->btv", x, table) + self.bias
            case _:  # its mean in every position, too
                return F.linear(x + table.mean(0), table, self.bias)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", ["linear", "transposed", "einsum", "mean"])
def test_tied_heads(way: str, method: str) -> None:
    assert inexact(TiedHead(way), (ids(7, B, 5),), styles=("param-wise",), methods=method) == []
