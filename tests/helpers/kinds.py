"""Small models of several kinds, each with its data and losses, for trainings on one process and on several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

SIZE = 13


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(torch.tanh(self.inner(self.norm(x))))


class Net(nn.Module):
    """Two blocks between a first layer and a head, and a parameter of its own."""

    def __init__(self, block: type[nn.Module] = Block) -> None:
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.scale = nn.Parameter(torch.ones(6))
        self.blocks = nn.ModuleList([block(), block()])
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x)) * self.scale
        for block in self.blocks:
            h = block(h)
        return self.head(h).mean(1)


class Checkpointed(Net):
    """Computes its blocks again in the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x)) * self.scale
        for block in self.blocks:
            h: Any = checkpoint(block, h, use_reentrant=False)
        return self.head(h).mean(1)


class Derived(nn.Module):
    """Uses of its parameters meet samples through tensors that were derived from parameters alone."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.direction = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.randn(6, 6))
        self.length, self.position = nn.Parameter(torch.ones(6)), nn.Parameter(torch.randn(9, 6) / 3)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.direction / self.direction.norm(dim=1, keepdim=True) * self.length.exp()[:, None]
        h = x * (1 + self.scale) + self.position[: x.shape[1]]
        return x + torch.tanh(F.linear(h, weight))


class LoRA(nn.Module):
    """A frozen layer and two that adapt it."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(6, 6), nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False)
        self.base.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.base(x) + self.up(self.down(x)))


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embedding(ids)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def partly_frozen() -> nn.Module:
    model = Net()
    model.first.requires_grad_(False)
    model.blocks[0].inner.requires_grad_(False)
    return model


def adapted() -> nn.Module:
    model = Net(LoRA)
    for part in (model.first, model.head):
        part.requires_grad_(False)
    model.scale.requires_grad_(False)
    return model


KINDS: dict[str, Callable[[], nn.Module]] = {
    "net": Net,
    "frozen": partly_frozen,
    "tied": Tied,
    "lora": adapted,
    "checkpointed": Checkpointed,
    "derived": lambda: Net(Derived),
}


def build(kind: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return KINDS[kind]().to(dtype)


def data(kind: str, dtype: torch.dtype) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    if kind == "tied":
        return TensorDataset(torch.randint(11, (SIZE, 5), generator=generator))
    x = torch.randn(SIZE, 4, 5, generator=generator, dtype=torch.float64)
    return TensorDataset(x.to(dtype), torch.randint(3, (SIZE,), generator=generator))


def losses(model: nn.Module, batch: Any) -> Tensor:
    """``[B]``, of classes, or of the next token."""
    if len(batch) == 1:
        logits = model(batch[0][:, :-1])
        return F.cross_entropy(logits.transpose(1, 2), batch[0][:, 1:], reduction="none").mean(1)
    logits = model(batch[0])
    logits = logits.float() if logits.dtype == torch.bfloat16 else logits
    return F.cross_entropy(logits, batch[1], reduction="none")


@dataclass(frozen=True)
class Run:
    """What a training is on.

    Attributes:
        kind: of model.
        style: of clipping.
        dtype: of weights and data.
        expected: batch size.
    """

    kind: str = "net"
    style: str = "all-layer"
    dtype: torch.dtype = torch.float64
    expected: float = 7
