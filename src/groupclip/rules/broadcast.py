"""Adding, subtracting, multiplying and dividing by a parameter: position embeddings, LayerScale, RMSNorm of any vendor.

Which dimension of the parameter meets which of the batch is what broadcasting says, so a position embedding with as
many positions as there are samples is no trap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..call import Call, NotSplit
from ..gate import tap_in_place
from ..layout import Axis
from ..operands import targets
from ..persample.base import PerSample
from ..persample.dense import Dense
from ..private import RULES, Rule

#: From (gradient of the output, the other operand, this operand) to the gradient of this operand, entry by entry.
_Slope = Callable[[Tensor, Any, Any], Tensor]


def _same(g: Tensor, other: Any, self: Any) -> Tensor:
    return g


def _negated(g: Tensor, other: Any, self: Any) -> Tensor:
    return -g


def _add(call: Call, input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    if alpha != 1:
        raise NotSplit
    return _elementwise(call, torch.add, input, other, _same, _same)


def _sub(call: Call, input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    if alpha != 1:
        raise NotSplit
    return _elementwise(call, torch.sub, input, other, _same, _negated)


def _mul(call: Call, input: Any, other: Any) -> Tensor:
    return _elementwise(call, torch.mul, input, other, lambda g, o, s: g * o, lambda g, o, s: g * o)


def _div(call: Call, input: Any, other: Any) -> Tensor:
    return _elementwise(call, torch.div, input, other, lambda g, o, s: g / o, lambda g, o, s: -g * o / (s * s))


def _rsub(call: Call, self: Any, other: Any, *, alpha: float = 1) -> Tensor:
    return _sub(call, other, self, alpha=alpha)


def _rdiv(call: Call, self: Any, other: Any) -> Tensor:
    return _div(call, other, self)


def _elementwise(call: Call, function: Any, left: Any, right: Any, left_slope: _Slope, right_slope: _Slope) -> Tensor:
    private, other, slope = (left, right, left_slope) if call.is_private(left) else (right, left, right_slope)
    x, axis, row_a_sample = _meet(call, private, other, place=0 if other is left else 1)
    if row_a_sample:
        rows = call.aligned_rows(private)
        return function(rows, x) if private is left else function(x, rows)
    value = call.value(private)
    out = function(value, x) if private is left else function(x, value)
    # Sums need nothing of the other operand; keeping it would cost an activation that plain training doesn't keep.
    saved = [] if slope in (_same, _negated) else [x]
    return call.tap([out], saved, [private], _booking(call, out.shape, axis, private, slope))[0]


def _meet(call: Call, private: Any, other: Any, place: int) -> tuple[Tensor, Axis, bool]:
    """The other operand as a batch, its axis, and whether the private one has a row for each sample of it.

    Raises:
        NotSplit: the private operand doesn't meet each sample of the other as a whole, or as one row.
    """
    if call.is_private(other) or not isinstance(other, Tensor) or private.dim() > other.dim() or other.dim() == 0:
        raise NotSplit
    aligned = _aligned(private.shape, other.dim())
    x, axis = call.activation(other, place)
    along = 1 if axis is Axis.SECOND else 0
    if torch.broadcast_shapes(private.shape, other.shape)[along] != other.shape[along]:
        raise NotSplit
    if (axis is Axis.SECOND and aligned[1] != 1) or (axis is Axis.MINOR and aligned[0] != 1):
        raise NotSplit
    if axis is Axis.SECOND or aligned[0] == 1:
        return x, axis, False
    if x.shape[0] != call.batch:
        raise NotSplit
    return x, axis, True


def _booking(call: Call, shape: torch.Size, axis: Axis, private: Any, slope: _Slope) -> Any:
    batch, value, own = call.batch, call.value(private).detach(), private.shape

    def book(saved: Any, grads: Any) -> list[PerSample]:
        full = slope(grads[0], saved[0] if saved else None, value).expand(shape)
        return [Dense(sum_to(full, axis, own, batch))]

    return book


def _aligned(shape: torch.Size, dims: int) -> tuple[int, ...]:
    return (1,) * (dims - len(shape)) + tuple(shape)


def sum_to(full: Tensor, axis: Axis, shape: torch.Size, batch: int) -> Tensor:
    """Sum the gradient of a broadcast operand, in the shape of the result, to ``[B, *shape]``."""
    aligned = _aligned(shape, full.dim())
    if axis is Axis.SECOND:
        aligned = (1, aligned[0], *aligned[2:])
    full = axis.split(full, batch)  # [B, k, ..]; for SECOND the dimensions [B, d0, ..]
    if axis is not Axis.SECOND:
        aligned = (1, *aligned)
    dims = [i for i in range(1, full.dim()) if aligned[i] == 1 and full.shape[i] != 1]
    if dims:
        full = full.sum(dim=dims, keepdim=True, dtype=torch.promote_types(full.dtype, torch.float32))
    return full.reshape(batch, *shape)


def _in_place(name: str, slope: _Slope) -> Rule:
    def rule(call: Call, self: Any, other: Any) -> Tensor:
        # Where samples can't be told apart, NotSplit leads to an error that says to write it out of place.
        if call.is_private(self) or torch.broadcast_shapes(other.shape, self.shape) != self.shape:
            raise NotSplit
        x, axis, row_a_sample = _meet(call, other, self, place=0)
        if row_a_sample:
            return getattr(x, name)(call.aligned_rows(other))
        saved = [] if slope in (_same, _negated) else [x.detach().clone()]
        getattr(x, name)(call.value(other))
        return tap_in_place(x, saved, [targets(other)], _booking(call, x.shape, axis, other, slope))

    return rule


for _functions, _rule in (
    ((torch.add, Tensor.add), _add),
    ((torch.sub, Tensor.sub, torch.subtract, Tensor.subtract), _sub),
    ((torch.mul, Tensor.mul, torch.multiply, Tensor.multiply), _mul),
    ((torch.div, Tensor.div, torch.true_divide, Tensor.true_divide, torch.divide, Tensor.divide), _div),
):
    for _function in _functions:
        RULES[_function] = _rule
RULES[torch.rsub] = _rsub
RULES[Tensor.__rsub__] = _rsub
RULES[Tensor.__rdiv__] = _rdiv
RULES[Tensor.add_] = _in_place("add_", _same)
RULES[Tensor.sub_] = _in_place("sub_", _negated)
RULES[Tensor.mul_] = _in_place("mul_", lambda g, o, s: g * o)
RULES[Tensor.div_] = _in_place("div_", lambda g, o, s: -g * o / (s * s))
