"""Convolutions over the grid of their options: exact, by both norm methods."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from check_engine import inexact
from check_rules import METHODS, B, Calls, randn


@pytest.fixture(autouse=True)
def quiet_even_kernels() -> Iterator[None]:
    """Torch warns that padding="same" pads a copy where the kernel is even."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using padding='same' with even kernel lengths")
        yield


CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
IMAGES = {1: (7,), 2: (6, 5), 3: (4, 5, 4)}
KERNELS: dict[int, list[Any]] = {1: [1, 2, 3], 2: [1, 3, (2, 3)], 3: [2, (1, 3, 2)]}


def convolution_options(dims: int) -> Iterator[dict[str, Any]]:
    for kernel, groups, dilation in itertools.product(KERNELS[dims], (1, 2, 4), (1, 2)):
        for stride, padding in [(1, 0), (2, 1), (1, "same"), (1, "valid"), (2, 0)]:
            if kernel == 1 and dilation == 2:
                continue
            if isinstance(padding, int) and dims == 3 and dilation == 2:
                padding = 2
            yield {
                "kernel_size": kernel, "groups": groups, "dilation": dilation, "stride": stride, "padding": padding,
            }  # fmt: skip


def inexact_convolution(dims: int, options: dict[str, Any], method: str) -> list[str]:
    model = nn.Sequential(CONV[dims](4, 4, **options), nn.Tanh(), nn.Flatten(), nn.LazyLinear(2))
    x = randn(B, 4, *IMAGES[dims])
    model(x)
    return inexact(model, (x,), styles=("param-wise",), methods=method)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dims", CONV)
def test_convolutions(dims: int, method: str) -> None:
    """Kernels, groups (depthwise included), dilation, stride, padding as numbers and as text."""
    tried = 0
    for i, options in enumerate(convolution_options(dims)):
        if i % 3 == METHODS.index(method) or dims == 2:
            assert inexact_convolution(dims, options, method) == [], options
            tried += 1
    assert tried >= 12


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dims", CONV)
def test_all_convolutions(dims: int, method: str) -> None:
    for options in convolution_options(dims):
        assert inexact_convolution(dims, options, method) == [], options


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("dims", CONV)
def test_padding_modes(dims: int, mode: str) -> None:
    """Uneven paddings, numbers and text; bias and none."""
    uneven = {1: (2,), 2: (1, 2), 3: (1, 2, 1)}[dims]
    for padding, bias in ((uneven, True), ("same", False), (1, False)):
        options = {"kernel_size": 2, "padding": padding, "padding_mode": mode, "bias": bias, "dilation": 1}
        for method in METHODS:
            assert inexact_convolution(dims, options, method) == [], options


def test_convolutions_called_as_functions() -> None:
    """With keywords, tuples of one, a bias that is frozen or absent, images of each sample in a dimension more."""
    w, b, x = randn(4, 2, 3), randn(4), randn(B, 4, 7)
    for function in (
        lambda x, w, b: F.conv1d(x, w, b, (2,), (1,), (1,), 2),
        lambda x, w, b: F.conv1d(input=x, weight=w, bias=b, groups=2, padding="same"),
        lambda x, w, b: F.conv1d(x, w, None, groups=2, padding=1) + b[:, None],
        lambda x, w, b: torch.conv1d(x, w, bias=b, groups=2, stride=2),
    ):
        assert inexact(Calls(function, w=w, b=b), (x,)) == []
    frames = randn(B, 2, 4, 5, 5)
    folded = Calls(lambda x, w: F.conv2d(x.flatten(0, 1), w, padding=1).unflatten(0, (-1, 2)), w=randn(3, 4, 3, 3))
    for method in METHODS:
        assert inexact(folded, (frames,), methods=method) == []
