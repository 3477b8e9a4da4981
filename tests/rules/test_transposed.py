"""Transposed convolutions over the grid of their options: exact, by both norm methods, and by a rule."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from check_engine import inexact
from check_rules import METHODS, B, Calls, randn, slow_operations

UP = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
IMAGES = {1: (5,), 2: (3, 4), 3: (2, 3, 2)}
KERNELS: dict[int, list[Any]] = {1: [1, 2, 3], 2: [2, (2, 3)], 3: [(1, 3, 2)]}
#: stride, padding, output padding, dilation; an output padding may reach the stride where the dilation is larger.
STEPS = [(1, 0, 0, 1), (2, 0, 1, 1), (2, 1, 0, 2), (3, 1, 2, 1), (1, 0, 1, 2), (1, 1, 2, 3), (2, 1, 2, 3)]


def options(dims: int) -> Iterator[dict[str, Any]]:
    for kernel, groups, (stride, padding, more, dilation) in itertools.product(KERNELS[dims], (1, 2, 4), STEPS):
        yield {
            "kernel_size": kernel, "groups": groups, "stride": stride, "padding": padding, "output_padding": more,
            "dilation": dilation, "bias": (padding + groups) % 2 == 0,
        }  # fmt: skip


def too_small(dims: int, given: dict[str, Any]) -> bool:
    try:
        return UP[dims](4, 4, **given)(torch.zeros(1, 4, *IMAGES[dims])).numel() == 0
    except RuntimeError:
        return True  # torch refuses: the padding leaves nothing


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dims", UP)
def test_transposed_convolutions(dims: int, method: str) -> None:
    """Kernels, groups (depthwise included), stride, padding, output padding, dilation, bias or none."""
    assert inexact_among([g for i, g in enumerate(options(dims)) if i % 4 == METHODS.index(method)], dims, method) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dims", UP)
def test_all_transposed_convolutions(dims: int, method: str) -> None:
    assert inexact_among(list(options(dims)), dims, method) >= 15


def inexact_among(grid: list[dict[str, Any]], dims: int, method: str) -> int:
    """Asserts that those that torch runs are exact; how many that are."""
    tried = 0
    for given in grid:
        if too_small(dims, given):
            continue
        model = nn.Sequential(UP[dims](4, 4, **given), nn.Tanh())
        assert inexact(model, (randn(B, 4, *IMAGES[dims]),), styles=("param-wise",), methods=method) == [], given
        tried += 1
    return tried


def test_uneven_options() -> None:
    """A number for each dimension; the output size given in the call; more channels out than in, and fewer."""
    for channels in (2, 6):
        up = nn.ConvTranspose2d(4, channels, (3, 2), (2, 3), (1, 0), (1, 2), groups=2, dilation=(2, 1))
        assert inexact(nn.Sequential(up, nn.Tanh()), (randn(B, 4, 3, 4),)) == []

    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose1d(2, 3, 3, stride=3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.up(x, output_size=[17]))

    assert inexact(Sized(), (randn(B, 2, 5),)) == []


def test_called_as_functions() -> None:
    w, b, x = randn(4, 2, 3), randn(4), randn(B, 4, 5)
    for function in (
        lambda x, w, b: F.conv_transpose1d(x, w, b, (2,), (1,), (1,), 2, (1,)),
        lambda x, w, b: F.conv_transpose1d(input=x, weight=w, bias=b, groups=2, stride=2),
        lambda x, w, b: F.conv_transpose1d(x, w, None, groups=2) + b[:, None],
        lambda x, w, b: torch.conv_transpose1d(x.mT.contiguous().mT, w, bias=b, groups=2),
    ):
        assert inexact(Calls(function, w=w, b=b), (x,)) == []
    folded = Calls(
        lambda x, w: F.conv_transpose1d(x.flatten(0, 1), w, stride=2).unflatten(0, (-1, 2)), w=randn(4, 3, 3)
    )
    for method in METHODS:
        assert inexact(folded, (randn(B, 2, 4, 5),), methods=method) == []


def autoencoder() -> nn.Module:
    """One kernel down and, tied, up again: a use in each direction."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Conv2d(2, 4, 3, stride=2, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            code = torch.tanh(self.down(x))
            return F.conv_transpose2d(code, self.down.weight, stride=2, padding=1, output_padding=1)

    return Tied()


def test_a_kernel_used_in_both_directions() -> None:
    assert inexact(autoencoder(), (randn(B, 2, 6, 6),)) == []


@pytest.mark.parametrize("size", [0, 1])
def test_few_samples(size: int) -> None:
    assert inexact(nn.Sequential(nn.ConvTranspose2d(2, 3, 3, 2, 1, 1), nn.Tanh()), (randn(size, 2, 3, 4),)) == []


def test_by_a_rule() -> None:
    for model in (autoencoder(), nn.ConvTranspose2d(2, 4, 3, stride=2, output_padding=1, groups=2, dilation=2)):
        assert slow_operations(model, (randn(B, 2, 6, 6),)) == set()
