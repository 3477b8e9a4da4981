"""One parameter in several places: what is clipped is the norm of the SUM, cross terms and all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from check_engine import inexact
from check_rules import METHODS, B, ids, observed, randn

V, D, T = 7, 4, 5

#: The head of a model whose table [V, D] is looked up, in the ways that models write it: (x [B, T, D], table) -> [B, T, V].
HEADS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": lambda x, w: F.linear(x, w),
    "x @ w.t()": lambda x, w: x @ w.t(),
    "x @ w.T": lambda x, w: x @ w.T,
    "x @ w.mT": lambda x, w: torch.matmul(x, w.mT),
    "transpose": lambda x, w: x @ w.transpose(0, 1),
    "transpose, -1": lambda x, w: x @ w.transpose(-1, -2),
    "permute": lambda x, w: x @ w.permute(1, 0),
    "t of t": lambda x, w: F.linear(x, w.t().t()),
    "linear of t": lambda x, w: F.linear(x, w.t().mT),
    "view": lambda x, w: F.linear(x, w.view(V, D)),
    "einsum": lambda x, w: torch.einsum("btd,vd->btv", x, w),
    "w @ x": lambda x, w: (w @ x.mT).mT,
    "addmm": lambda x, w: torch.addmm(x.new_zeros(V), x.flatten(0, 1), w.t()).unflatten(0, (-1, T)),
    "mean": lambda x, w: F.linear(x + w.mean(0), w),
    "scaled": lambda x, w: F.linear(x, w * D**-0.5),
    "half of the vocabulary": lambda x, w: F.linear(x, w[: V // 2]),
    "chunks": lambda x, w: torch.cat([F.linear(x, part) for part in w.chunk(2)], -1),
    "cast": lambda x, w: F.linear(x, w.to(x.dtype)),
    "twice": lambda x, w: F.linear(x, w) + F.linear(x.cos(), w),
    "both ways": lambda x, w: F.linear(torch.tanh(F.linear(x, w)) @ w, w),
}
#: Those in which the head has the table itself, moved: the cross term is had without a gradient as large as the table.
CROSS = [
    "linear",
    "x @ w.t()",
    "x @ w.T",
    "x @ w.mT",
    "transpose",
    "permute",
    "t of t",
    "view",
    "einsum",
    "w @ x",
    "addmm",
    "cast",
]


class TiedHead(nn.Module):
    def __init__(self, way: str, padding: int | None = None) -> None:
        super().__init__()
        self.words, self.way, self.bias = nn.Embedding(V, D, padding_idx=padding), way, nn.Parameter(torch.zeros(1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        return HEADS[self.way](torch.tanh(x), self.words.weight) + self.bias


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", HEADS)
def test_tied_heads(way: str, method: str) -> None:
    for size in (1, B):
        assert inexact(TiedHead(way), (ids(V, size, T),), styles=("param-wise",), methods=method) == [], size
    assert inexact(TiedHead(way, padding=2), (ids(V, B, T),), styles=("all-layer",), methods=method) == []


@pytest.mark.parametrize("way", CROSS)
def test_no_gradient_of_the_table_is_kept_for_a_sample(way: str) -> None:
    model, batch = TiedHead(way).double(), (ids(V, B, T),)
    with observed(model, batch) as (engine, uses):
        engine.backward(model(*batch).square().sum((1, 2)))
    assert "cross term" in uses.methods["words.weight"]


class Albert(nn.Module):
    """One block, applied three times; its table is factorised and tied through both factors."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.project = nn.Embedding(V, 3), nn.Linear(3, D)
        self.block = nn.TransformerEncoderLayer(D, 2, 6, dropout=0.0, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.project(self.words(tokens))
        for _ in range(3):
            x = self.block(x)
        return F.linear(F.linear(x, self.project.weight.t()), self.words.weight)


class Both(nn.Module):
    """One module on two inputs of different lengths, and one on its own output."""

    def __init__(self, module: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.module = module()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = torch.tanh(self.module(x)), torch.tanh(self.module(y))
        return torch.cat([x, y, self.module(y)], 1)


SHARED: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(D, D),
    "layer norm": lambda: nn.LayerNorm(D),
    "attention layer": lambda: nn.TransformerEncoderLayer(D, 2, 6, dropout=0.0, batch_first=True),
    "bilinear": lambda: Squares(),
}


class Squares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pairs = nn.Bilinear(D, D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.pairs(x, x.cos())


def test_one_block_three_times() -> None:
    for size in (1, B):
        assert inexact(Albert(), (ids(V, size, T),)) == [], size


@pytest.mark.parametrize("module", SHARED)
def test_one_module_on_two_inputs(module: str) -> None:
    assert inexact(Both(SHARED[module]), (randn(B, T, D), randn(B, 2, D).cos())) == []


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.ConvTranspose1d])
def test_one_convolution_on_two_inputs(kind: Callable[..., nn.Module]) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = kind(2, 2, 3, padding=1)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.cat([self.conv(torch.tanh(self.conv(x))), self.conv(y)], 2)

    assert inexact(Twice(), (randn(B, 2, 6), randn(B, 2, 4).cos())) == []


@pytest.mark.parametrize("way", ["linear", "x @ w.t()"])
def test_a_model_called_twice_before_one_backward(way: str) -> None:
    def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        chosen, rejected = (model(t).log_softmax(-1)[..., 0].sum(1) for t in batch)
        return F.softplus(rejected - 0.5 * chosen)

    assert inexact(TiedHead(way), (ids(V, B, T), ids(V, B, 3)), losses) == []
