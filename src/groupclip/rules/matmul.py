"""Matrix products with a parameter on one side: ``x @ W``, ``torch.matmul``, ``mm``, ``W @ x``, vectors and stacks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..call import Call, NotSplit
from ..layout import Axis
from ..persample.base import PerSample
from ..persample.outer import Outer
from ..private import RULES
from .einsum import product
from .shapes import autocast_to, by_position


def matmul(call: Call, input: Any, other: Any) -> Tensor:
    """``x [.., d] @ W [d, p]`` or ``W [p, d] @ x [B, d, n]``; other shapes are told by letters."""
    try:
        return _right(call, input, other) if call.is_private(other) else _left(call, input, other)
    except NotSplit:
        return product(call, input, other)


def _right(call: Call, input: Any, weight: Any) -> Tensor:
    x, axis = call.activation(input)
    if x.dim() < 2 or weight.dim() != 2:
        raise NotSplit
    x = autocast_to(x)
    out = torch.matmul(x, call.value(weight))
    batch = call.batch

    def book(saved: Any, grads: Any) -> list[PerSample]:
        return [Outer(by_position(saved[0], axis, batch), by_position(grads[0], axis, batch), inputs_first=True)]

    return call.tap([out], [x], [weight], book)[0]


def _left(call: Call, weight: Any, input: Any) -> Tensor:
    x, axis = call.activation(input)
    if (
        x.dim() < 3 or (axis is Axis.SECOND and x.dim() == 3) or weight.dim() != 2
    ):  # W @ x of two dimensions has the samples last, if anywhere
        raise NotSplit
    x = autocast_to(x)
    out = torch.matmul(call.value(weight), x)
    batch = call.batch

    def book(saved: Any, grads: Any) -> list[PerSample]:
        # out = W x, so out^T = x^T W^T: the columns of x are the positions.
        a, g = saved[0].transpose(-1, -2), grads[0].transpose(-1, -2)
        return [Outer(by_position(a, axis, batch), by_position(g, axis, batch))]

    return call.tap([out], [x], [weight], book)[0]


def mm(call: Call, input: Any, mat2: Any) -> Tensor:
    """As :func:`matmul`, for two dimensions."""
    return matmul(call, input, mat2)


def rmatmul(call: Call, self: Any, other: Any) -> Tensor:
    """``other @ self``."""
    return matmul(call, other, self)


for function in (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm):
    RULES[function] = mm if function in (torch.mm, Tensor.mm) else matmul
RULES[Tensor.__rmatmul__] = rmatmul
