"""``torch.matmul`` with a parameter on either side: ``x @ W``, ``W @ x``, vectors and stacks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..autograd.dispatch import RULES
from ..autograd.operation import Call, NotSplit
from ..persample.base import PerSample
from ..persample.outer import Outer
from .einsum import product
from .shapes import autocast_to, by_position


def matmul(call: Call, input: Tensor, other: Tensor) -> Tensor:
    """Take ``x [.., d] @ W [d, p]`` or ``W [p, d] @ x [.., d, n]``; other shapes go by letters."""
    try:
        return _right(call, input, other) if call.is_private(other) else _left(call, input, other)
    except NotSplit:
        return product(call, input, other)


def _right(call: Call, input: Tensor, weight: Tensor) -> Tensor:
    if weight.dim() != 2:
        raise NotSplit
    x = autocast_to(call.samples(input))
    out = torch.matmul(x, call.value(weight))

    def book(saved: Sequence[Tensor], grads: Sequence[Tensor]) -> list[PerSample]:
        return [Outer(by_position(saved[0]), by_position(grads[0]), inputs_first=True)]

    return call.tap([out], [x], [weight], book)[0]


def _left(call: Call, weight: Tensor, input: Tensor) -> Tensor:
    if input.dim() < 2 or weight.dim() != 2:
        raise NotSplit
    x = autocast_to(call.samples(input))
    out = torch.matmul(call.value(weight), x)

    def book(saved: Sequence[Tensor], grads: Sequence[Tensor]) -> list[PerSample]:
        # out = W x, so out^T = x^T W^T: the columns of x are the positions.
        return [Outer(by_position(saved[0].transpose(-1, -2)), by_position(grads[0].transpose(-1, -2)))]

    return call.tap([out], [x], [weight], book)[0]


def rmatmul(call: Call, self: Tensor, other: Tensor) -> Tensor:
    """Take ``other @ self``."""
    return matmul(call, other, self)


def mm(call: Call, input: Tensor, mat2: Tensor) -> Tensor:
    """Multiply two matrices: the same under other names."""
    return matmul(call, input, mat2)


for function in (torch.matmul, Tensor.matmul, Tensor.__matmul__):
    RULES[function] = matmul
RULES[torch.mm] = RULES[Tensor.mm] = mm
RULES[Tensor.__rmatmul__] = rmatmul
