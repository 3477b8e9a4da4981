"""Random small models, groupings and micro-batch splits for property tests (hypothesis).

No drawn model has a parameter whose gradient is rounding errors alone: a norm has two channels or more in a
group, three features or more, and a bend after it, so it never cancels what stands before. No ReLU: it may
leave one feature alive, whose scale a norm cancels, and it bends elsewhere in another precision.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from models import Entry, numbers, output_square, tokens

Layer = tuple[str, *tuple[int | bool | str, ...]]  # a kind in BUILD and its arguments: what a failure prints


class ChannelsLast(nn.Module):
    """[B, C, *rest] -> [B, *rest, C], so that layers over features follow layers over channels."""

    def forward(self, x: Tensor) -> Tensor:
        return x.movedim(1, -1)


class Scale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain


class Shift(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.offset


class Product(nn.Module):
    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(width_in, width_out))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix


class Twice(nn.Module):
    """A residual block, used two times."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.tanh(self.inner(x))
        return x + torch.tanh(self.inner(x))


def conv2d(inputs: int, outputs: int, kernel: int, stride: int, groups: int, mode: str) -> nn.Module:
    return nn.Conv2d(inputs, outputs, kernel, stride, 1, groups=groups, padding_mode=mode)


BUILD: dict[str, Callable[..., nn.Module]] = {
    "linear": nn.Linear,
    "product": Product,
    "scale": Scale,
    "shift": Shift,
    "twice": Twice,
    "layer-norm": lambda width: nn.Sequential(nn.LayerNorm(width), nn.Tanh()),
    "rms-norm": lambda width: nn.Sequential(nn.RMSNorm(width), nn.Tanh()),
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "conv2d": conv2d,
    "group-norm": lambda channels: nn.Sequential(nn.GroupNorm(channels // 2, channels), nn.Tanh()),
    "channels-last": ChannelsLast,
    "embedding": lambda size, width, padding: nn.Embedding(size, width, padding_idx=0 if padding else None),
}
FEATURE_KINDS = ("linear", "product", "scale", "shift", "twice", "layer-norm", "rms-norm")


@st.composite
def _feature_layers(draw: st.DrawFn, width: int) -> list[Layer]:
    """Layers over the last dimension, with some parameter among them."""
    layers: list[Layer] = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(FEATURE_KINDS))
        if kind in ("linear", "product"):
            bias = (draw(st.booleans()),) if kind == "linear" else ()
            layers.append((kind, width, outputs := draw(st.integers(3, 6)), *bias))
            width = outputs
        else:
            layers.append((kind, width))
        layers += draw(st.sampled_from([[], [("tanh",)], [("gelu",)]]))
    return layers


@st.composite
def _image_layers(draw: st.DrawFn, channels: int) -> tuple[list[Layer], int]:
    layers: list[Layer] = []
    for _ in range(draw(st.integers(1, 2))):
        more, groups = draw(st.sampled_from([4, 6])), draw(st.sampled_from([1, 2]))
        kernel, stride = draw(st.integers(2, 3)), draw(st.integers(1, 2))
        mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
        layers.append(("conv2d", channels, more, kernel, stride, groups, mode))
        channels = more
        layers += draw(st.sampled_from([[], [("tanh",)], [("group-norm", channels)]]))
    return layers, channels


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    """Random layers over vectors, sequences, images or tokens, some parameters frozen, with a loss [B]."""
    kind = draw(st.sampled_from(["vector", "sequence", "image", "tokens"]))
    width = draw(st.integers(3, 5))
    layers: list[Layer] = []
    if kind == "image":
        layers, width = draw(_image_layers(4))
        layers.append(("channels-last",))
        batches = numbers(4, 6, 5)
    elif kind == "tokens":
        layers = [("embedding", 6, width, draw(st.booleans()))]
        batches = tokens(draw(st.integers(1, 5)), 6)
    else:
        batches = numbers(width) if kind == "vector" else numbers(draw(st.integers(1, 5)), width)
    layers += draw(_feature_layers(width))

    def build_all() -> nn.Sequential:
        return nn.Sequential(*(BUILD[kind](*arguments) for kind, *arguments in layers))

    every = [name for name, _ in build_all().named_parameters()]
    frozen = draw(st.lists(st.sampled_from(every), max_size=len(every) - 1, unique=True))

    def build() -> nn.Module:
        model = build_all()
        for name in frozen:
            model.get_parameter(name).requires_grad_(False)
        return model

    return Entry(f"{kind}: {layers}, frozen: {frozen}", build, batches, output_square)


def groupings(model: nn.Module) -> st.SearchStrategy[dict[str, str]]:
    """Parameter name -> group, at random over the trainable parameters: a style for partition."""
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    group = st.integers(0, len(names) - 1).map("g{}".format)
    return st.fixed_dictionaries({name: group for name in names})


def splits(size: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Micro-batch sizes, each 1 or more, that add up to ``size`` (1 or more)."""
    cuts = st.sets(st.integers(1, size - 1)) if size > 1 else st.just(set[int]())
    return cuts.map(lambda inner: tuple(b - a for a, b in pairwise([0, *sorted(inner), size])))
