"""Constants and parameters as long as the batch are no batch: tables, positions, learnt tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from check_engine import inexact

T, D = 4, 3  # sizes of batches below meet T, its divisors and its multiples
SIZES = [1, 2, 3, 4, 5, 8]


def sequences(size: int) -> tuple[Tensor, ...]:
    return (torch.randn(size, T, D, generator=torch.Generator().manual_seed(size)),)


class WithConstant(nn.Module):
    """Adds what a layer makes of a constant table [T, D] to every sample: Swin-v2's position bias, for one."""

    def __init__(self, layer: nn.Module, table: Tensor) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(D, 2)
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x + self.layer(self.table)))


class ConvMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, D, 2)

    def forward(self, table: Tensor) -> Tensor:
        return self.conv(table).mean(-1)


class Matmul(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(D, D))

    def forward(self, table: Tensor) -> Tensor:
        return table @ self.weight


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, table: Tensor) -> Tensor:
        return table * self.weight


TABLE = torch.linspace(-1, 1, T * D).sin().reshape(T, D)
ON_CONSTANTS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: WithConstant(nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, D)), TABLE),
    "layer norm": lambda: WithConstant(
        nn.Sequential(nn.LayerNorm(D), nn.Tanh()), TABLE * torch.arange(1, T + 1)[:, None]
    ),
    "matmul": lambda: WithConstant(Matmul(), TABLE),
    "product": lambda: WithConstant(Scaled(), TABLE),
    "conv": lambda: WithConstant(ConvMean(), torch.arange(T * 2 * 3.0).sin().view(T, 2, 3)),
    "embedding": lambda: WithConstant(nn.Embedding(T, D), torch.arange(T)),
    "embedding of pairs": lambda: WithConstant(
        nn.Sequential(nn.Embedding(7, D), Sum(1)), torch.arange(T)[:, None] - torch.arange(T) + 3
    ),
}


class Sum(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(self.dim)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layer", ON_CONSTANTS)
def test_a_constant_as_long_as_the_batch_is_no_batch(layer: str, size: int) -> None:
    """Each row would be clipped as if it were a sample, and a real sample would move all of them."""
    assert inexact(ON_CONSTANTS[layer](), sequences(size)) == []


class RelativeBias(nn.Module):
    """Attention with a table of biases that is looked up by a constant index [T, T]."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv = nn.Parameter(torch.randn(1, 2 * T - 1)), nn.Linear(D, 3 * D)
        self.register_buffer("index", torch.arange(T)[:, None] - torch.arange(T) + T - 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        bias = self.table[:, self.index]
        return torch.tanh(F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], bias)).squeeze(1)


class Positions(nn.Module):
    """Position embeddings in the ways of GPT-2 (arange), ViT ([1, T, d]), BERT (a buffer [1, T]) and by slicing."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.head = way, nn.Linear(D, 2)
        self.table = nn.Parameter(torch.randn(1, T, D) if way == "vit" else torch.randn(2 * T, D))
        self.register_buffer("ids", torch.arange(T)[None])

    def forward(self, x: Tensor) -> Tensor:
        match self.way:
            case "vit":
                position = self.table
            case "arange":
                position = F.embedding(torch.arange(x.shape[1]), self.table)
            case "bert":
                position = F.embedding(self.ids[:, : x.shape[1]], self.table)  # type: ignore[index]
            case "expanded":
                position = F.embedding(self.ids.expand(len(x), -1), self.table)  # type: ignore[operator]
            case _:
                position = self.table[: x.shape[1]]
        return self.head(torch.tanh(x + position))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", ["vit", "arange", "bert", "expanded", "slice"])
def test_position_embeddings(way: str, size: int) -> None:
    assert inexact(Positions(way), sequences(size)) == []


@pytest.mark.parametrize("size", SIZES)
def test_relative_position_bias(size: int) -> None:
    assert inexact(RelativeBias(), sequences(size)) == []


class Tokens(nn.Module):
    """Learnt tokens that every sample gets: a class token, latents, a mask token, queries of a decoder."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.head = way, nn.Linear(D, 2)
        self.token = nn.Parameter(torch.randn(1, 1, D) if way in ("expand", "repeat") else torch.randn(T, D))

    def forward(self, x: Tensor) -> Tensor:
        match self.way:
            case "expand":
                x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
            case "repeat":
                x = torch.cat([x, self.token.repeat(len(x), 1, 1)], 1)
            case "latents":
                latents = self.token.unsqueeze(0).expand(len(x), -1, -1)
                x = F.scaled_dot_product_attention(latents, x, x) + latents
            case "stack":
                x = torch.stack([x, self.token.expand_as(x)], 2).tanh()
            case "mask":
                x = torch.where(x[..., :1] > 0, x, self.token)
            case "second":  # DETR's queries, with the samples in dimension 1
                queries = self.token.unsqueeze(1).repeat(1, len(x), 1)
                x = torch.tanh(x.transpose(0, 1) * queries).transpose(0, 1)
        return self.head(x)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", ["expand", "repeat", "latents", "stack", "mask", "second"])
def test_learnt_tokens(way: str, size: int) -> None:
    assert inexact(Tokens(way), sequences(size)) == []
