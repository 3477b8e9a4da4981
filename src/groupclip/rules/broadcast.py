"""Adding, subtracting, multiplying and dividing by a parameter: position embeddings, LayerScale, RMSNorm of any vendor.

Which dimension of the parameter meets which of the batch is what broadcasting says, so a position embedding with as
many positions as there are samples is no trap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..derived import derive
from ..errors import UnsupportedOperation
from ..gate import tap_in_place
from ..persample.base import PerSample
from ..persample.dense import Dense
from ..private import RULES, Call, NotSplit, Rule, targets

#: From (gradient of the output, the other operand, this operand) to the gradient of this operand, entry by entry.
_Slope = Callable[[Tensor, Any, Any], Tensor]


def _add(call: Call, input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    return _elementwise(call, lambda a, b: torch.add(a, b, alpha=alpha), input, other, lambda g, *_: g, lambda g, *_: g * alpha)


def _sub(call: Call, input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    return _elementwise(call, lambda a, b: torch.sub(a, b, alpha=alpha), input, other, lambda g, *_: g, lambda g, *_: g * -alpha)


def _mul(call: Call, input: Any, other: Any) -> Tensor:
    return _elementwise(call, torch.mul, input, other, lambda g, o, s: g * o, lambda g, o, s: g * o)


def _div(call: Call, input: Any, other: Any) -> Tensor:
    return _elementwise(call, torch.div, input, other, lambda g, o, s: g / o, lambda g, o, s: -g * o / (s * s))


def _swapped(rule: Rule) -> Rule:
    return lambda call, self, other: rule(call, other, self)


def _elementwise(call: Call, function: Any, left: Any, right: Any, left_slope: _Slope, right_slope: _Slope) -> Tensor:
    if call.is_private(left) and call.is_private(right):
        raise NotSplit
    private, other, slope = (left, right, left_slope) if call.is_private(left) else (right, left, right_slope)
    if not _meets(call, private, other):
        raise NotSplit
    if private.dim() == other.dim() and private.shape[0] == call.batch > 1:  # a row a sample
        if not call.is_batch(other):
            raise NotSplit  # the other may be a table that is merely as long as the batch: deriving is right anyway
        rows = call.aligned_rows(private)
        return function(rows, other) if private is left else function(other, rows)

    def met() -> Tensor:
        value = call.value(private)
        out = function(value, other) if private is left else function(other, value)
        return call.tap([out], [other], [private], _booking(call, out.shape, private, slope))[0]

    # A constant table may have as many rows as there are samples: until the result meets the batch, nobody knows.
    return met() if call.is_batch(other) else derive(call, met)


def _meets(call: Call, private: Any, other: Any) -> bool:
    """Whether the other operand leads with the sample axis in the result, and the private one lines up with it."""
    if not isinstance(other, Tensor) or other.dim() == 0 or other.shape[0] != call.batch:
        return False
    return private.dim() <= other.dim() and torch.broadcast_shapes(private.shape, other.shape)[0] == call.batch


def _booking(call: Call, shape: torch.Size, private: Any, slope: _Slope) -> Any:
    batch, value = call.batch, call.value(private).detach()

    def book(saved: Any, grads: Any) -> list[PerSample]:
        full = slope(grads[0], saved[0], value).expand(shape)
        return [Dense(sum_to(full, private.shape, batch))]

    return book


def sum_to(full: Tensor, shape: torch.Size, batch: int) -> Tensor:
    """Sum the gradient of the broadcast operand ``[B, ..]`` to ``[B, *shape]``."""
    missing = full.dim() - len(shape)
    aligned = (1,) * missing + tuple(shape)
    dims = [i for i in range(1, full.dim()) if aligned[i] == 1 and full.shape[i] != 1]
    if dims:
        full = full.sum(dim=dims, keepdim=True, dtype=torch.promote_types(full.dtype, torch.float32))
    return full.reshape(batch, *shape)


def _in_place(name: str, slope: _Slope) -> Rule:
    def rule(call: Call, self: Any, other: Any) -> Tensor:
        if call.is_private(self):
            return call.derive()  # refuses, and says how to write it
        if not _meets(call, other, self) or torch.broadcast_shapes(other.shape, self.shape) != self.shape:
            raise UnsupportedOperation(
                f"{name} adds a parameter in place to a tensor of shape {tuple(self.shape)} that doesn't lead with the "
                f"{call.batch} samples; write it out of place (y = y + x instead of y += x)"
            )
        if other.dim() == self.dim() and other.shape[0] == call.batch > 1:
            return getattr(self, name)(call.aligned_rows(other))
        before = self.detach().clone() if name in ("mul_", "div_") else self.detach()[:0]
        getattr(self, name)(call.value(other))
        return tap_in_place(self, [before], [targets(other)], _booking(call, self.shape, other, slope))

    return rule


for _functions, _rule in (
    ((torch.add, Tensor.add), _add),
    ((torch.sub, Tensor.sub, torch.subtract, Tensor.subtract), _sub),
    ((torch.mul, Tensor.mul, torch.multiply, Tensor.multiply), _mul),
    ((torch.div, Tensor.div, torch.true_divide, Tensor.true_divide, torch.divide, Tensor.divide), _div),
):
    for _function in _functions:
        RULES[_function] = _rule
RULES[torch.rsub] = _swapped(_sub)
RULES[Tensor.__rsub__] = _swapped(_sub)
RULES[Tensor.__rdiv__] = _swapped(_div)
RULES[Tensor.add_] = _in_place("add_", lambda g, *_: g)
RULES[Tensor.sub_] = _in_place("sub_", lambda g, *_: -g)
RULES[Tensor.mul_] = _in_place("mul_", lambda g, o, s: g * o)
RULES[Tensor.div_] = _in_place("div_", lambda g, o, s: -g * o / (s * s))
