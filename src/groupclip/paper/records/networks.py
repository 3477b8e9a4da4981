"""Small convolutional networks of rows, as data: their layers, and the module that is built of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Conv:
    """A convolution to ``width`` maps, and a tanh."""

    width: int
    kernel: int
    stride: int = 1
    padding: int = 0


@dataclass(frozen=True)
class Pool:
    """Take the mean, or the largest, of ``size`` x ``size`` places, every ``stride`` places."""

    kind: str
    size: int
    stride: int


@dataclass(frozen=True)
class Dense:
    """Flatten, a linear map to ``width`` numbers, and a tanh."""

    width: int


@dataclass(frozen=True)
class Spread:
    """Take the mean of each map."""


Layer = Conv | Pool | Dense | Spread


@dataclass(frozen=True)
class Network:
    """``maps``: channels, height and width of the input. ``layers``: in order; a linear layer to the classes follows them."""

    maps: tuple[int, int, int]
    layers: tuple[Layer, ...]

    def build(self, classes: int, seed: int) -> Convolutional:
        """Build it with the random weights of this seed; torch's own generator stays as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Convolutional(self, classes)


class Convolutional(nn.Module):
    """Inputs ``[B, C, H, W]``, or the same flattened ``[B, C * H * W]``, to logits ``[B, classes]``."""

    def __init__(self, network: Network, classes: int) -> None:
        super().__init__()
        self.maps = network.maps
        self.layers, width = _modules(network.layers, network.maps)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x.unflatten(1, self.maps) if x.dim() == 2 else x))


def _modules(layers: Sequence[Layer], maps: tuple[int, int, int]) -> tuple[nn.Sequential, int]:
    """Return the layers, flattened at the end, and how many numbers they give."""
    found: list[nn.Module] = []
    x = torch.zeros(1, *maps)
    for layer in layers:
        added = _modules_of(layer, x.shape)
        with torch.no_grad():
            x = nn.Sequential(*added)(x)
        found += added
    return nn.Sequential(*found, nn.Flatten()), x.numel()


def _modules_of(layer: Layer, shape: torch.Size) -> list[nn.Module]:
    match layer:
        case Conv(width, kernel, stride, padding):
            return [nn.Conv2d(shape[1], width, kernel, stride, padding), nn.Tanh()]
        case Pool(kind, size, stride):
            return [{"mean": nn.AvgPool2d, "max": nn.MaxPool2d}[kind](size, stride)]
        case Dense(width):
            return [nn.Flatten(), nn.Linear(shape.numel(), width), nn.Tanh()]
        case Spread():
            return [nn.AdaptiveAvgPool2d(1)]
