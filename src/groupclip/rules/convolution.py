"""``conv1d``, ``conv2d``, ``conv3d``: any stride, dilation, groups, and padding, strings included.

The padding modes of ``nn.Conv*d`` other than zeros pad the input by ``F.pad`` before they call these, so they are
right here without being mentioned.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..autograd.dispatch import RULES, Rule
from ..autograd.operation import Call, NotSplit
from ..persample.base import PerSample
from ..persample.convolution import Convolution, Geometry
from ..persample.dense import Dense
from .shapes import autocast_to


def _rule(function: Any, dims: int) -> Rule:
    def rule(
        call: Call, input: Any, weight: Any, bias: Any = None, stride: int | Sequence[int] = 1,
        padding: str | int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, groups: int = 1,
    ) -> Tensor:  # fmt: skip
        if call.holds(weight) or call.holds(bias):
            raise NotSplit
        x = autocast_to(images(call.samples(input), dims))  # [size, K, C, *pixels]
        kernel = tuple(weight.shape[2:])
        strides, gaps = each(stride, dims), each(dilation, dims)
        x, zeros = _resolve_padding(x, padding, kernel, gaps)
        out = function(x.flatten(0, 1), call.value(weight), call.value(bias), strides, zeros, gaps, groups)
        geometry = Geometry(kernel, strides, zeros, gaps, groups)
        shape, weighted, biased = x.shape[:2], call.is_private(weight), call.is_private(bias)

        def book(saved: Any, grads: Any) -> list[PerSample]:
            g = grads[0].unflatten(0, shape)
            booked: list[PerSample] = []
            if weighted:
                booked.append(Convolution(saved[0], g, geometry))
            if biased:
                booked.append(bias_gradients(g))
            return booked

        out = call.tap([out], [x] if weighted else [], [weight] * weighted + [bias] * biased, book)[0]
        return out.unflatten(0, shape) if input.dim() == dims + 2 else out

    return rule


def images(x: Tensor, dims: int) -> Tensor:
    """Return ``[size, K, C, *pixels]`` of K images a sample, or of one that has no dimension for it."""
    if x.dim() == dims + 2:
        return x.unsqueeze(1)
    if x.dim() != dims + 3:
        raise NotSplit
    return x


def bias_gradients(g: Tensor) -> Dense:
    """Make the gradients of a bias ``[p]`` from output gradients ``[B, K, p, *pixels]``."""
    per_channel = g.reshape(*g.shape[:3], prod(g.shape[3:]))
    return Dense(per_channel.sum(dim=(1, 3), dtype=torch.promote_types(g.dtype, torch.float32)))


def each(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    """Return an option of a convolution, for each of its dimensions."""
    if isinstance(value, int):
        return (value,) * dims
    return tuple(value) * dims if len(value) == 1 else tuple(value)


def _resolve_padding(
    x: Tensor, padding: str | int | Sequence[int], kernel: tuple[int, ...], gaps: tuple[int, ...]
) -> tuple[Tensor, tuple[int, ...]]:
    """Return the input, padded where the padding isn't symmetric, and the symmetric zero padding that is left to do."""
    dims = len(kernel)
    if padding == "valid":
        return x, (0,) * dims
    if padding == "same":
        totals = [gap * (size - 1) for size, gap in zip(kernel, gaps, strict=True)]
        if all(total % 2 == 0 for total in totals):
            return x, tuple(total // 2 for total in totals)
        # torch puts the odd pixel at the end
        return F.pad(x, [q for t in reversed(totals) for q in (t // 2, t - t // 2)]), (0,) * dims
    assert not isinstance(padding, str)
    return x, each(padding, dims)


for _dims, _function in enumerate((F.conv1d, F.conv2d, F.conv3d), start=1):
    RULES[_function] = _rule(_function, _dims)
