"""Digests of gradients and weights under noise from a seed: equal before and after a change that may change no number.

    python benchmarks/digests.py > before.json
    (the change)
    python benchmarks/digests.py | diff before.json -

It uses public names alone, so PYTHONPATH=OTHER_CHECKOUT/src compares two checkouts. Five models, four styles, three steps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
from groupclip.noise import InsecureNoise

STYLES = ("all-layer", "layer-wise", "param-wise", "uniform:2")


class Reads(nn.Module):
    """Looks rows up, runs a recurrent layer over them, and attends to what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer, self.norm = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.norm(self.layer(self.table(ids))[0])
        return self.head((h + self.attention(h, h, h, need_weights=False)[0]).mean(1))


class Tied(nn.Module):
    """Uses one weight twice, and a scale that is a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head, self.scale = nn.Linear(6, 6), nn.Linear(6, 3), nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))) * self.scale)


def image(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)), lambda: torch.randn(5, 6)),
    "cnn": (
        lambda: image(nn.Conv2d(2, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=2)),
        lambda: torch.randn(5, 2, 9, 9),
    ),
    "tokens": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True),
                              nn.Flatten(), nn.Linear(32, 3)),
        lambda: torch.randn(5, 4, 6),
    ),
    "reads": (Reads, lambda: torch.randint(20, (5, 7))),
    "tied": (Tied, lambda: torch.randn(5, 6)),
}  # fmt: skip


def digest(tensors: Iterable[Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def steps(name: str, style: str) -> dict[str, str]:
    """Take three steps; return the digests of the last gradients and of the weights."""
    torch.manual_seed(7)
    make, batch = MODELS[name]
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    mechanism = gc.Mechanism(dataset_size=100, expected_batch_size=5, steps=10, noise_multiplier=0.8)
    engine = gc.attach(model, optimizer, style, mechanism, noise=InsecureNoise(3))
    for _ in range(3):
        optimizer.zero_grad()
        engine.backward(F.cross_entropy(model(batch()), torch.randint(3, (5,)), reduction="none"))
        optimizer.step()
    parameters = list(model.parameters())
    return {"gradients": digest(p.grad for p in parameters if p.grad is not None), "weights": digest(parameters)}


if __name__ == "__main__":
    print(json.dumps({f"{name}, {style}": steps(name, style) for name in MODELS for style in STYLES}, indent=1))
