"""``F.linear`` and ``torch.addmm``: the layers that hold most parameters."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import Call, NotSplit
from ..layout import Axis
from ..persample.base import PerSample
from ..persample.dense import Dense
from ..persample.outer import Outer
from ..private import RULES
from .shapes import autocast_to, by_position


def linear(call: Call, input: Any, weight: Any, bias: Any = None) -> Tensor:
    """``input [.., d]``, ``weight [p, d]``, ``bias [p]``."""
    x, axis = call.activation(input)
    x = autocast_to(x)
    if x.dim() < 2 or call.value(weight).dim() != 2:
        raise NotSplit
    out = F.linear(x, call.value(weight), call.value(bias))
    return _book(call, out, x, axis, weight, bias, inputs_first=False)


def addmm(call: Call, input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``input [p] + mat1 [N, d] @ mat2 [d, p]``: HF's Conv1D."""
    if call.is_private(mat1) or beta != 1 or alpha != 1 or input.dim() != 1:
        raise NotSplit
    x, axis = call.activation(mat1)
    x = autocast_to(x)
    out = torch.addmm(call.value(input), x, call.value(mat2))
    return _book(call, out, x, axis, mat2, input, inputs_first=True)


def _book(call: Call, out: Tensor, x: Tensor, axis: Axis, weight: Any, bias: Any, inputs_first: bool) -> Tensor:
    batch = call.batch
    weighted, biased = call.is_private(weight), call.is_private(bias)
    if not weighted and not biased:  # only the input was private, and it has met the batch by now
        return out

    def book(saved: Any, grads: Any) -> list[PerSample]:
        g = by_position(grads[0], axis, batch)
        booked: list[PerSample] = []
        if weighted:
            booked.append(Outer(by_position(saved[0], axis, batch), g, inputs_first))
        if biased:
            # Summed over positions BEFORE the norm: the bias is one parameter used at T positions.
            booked.append(Dense(g.sum(dim=1, dtype=torch.promote_types(g.dtype, torch.float32))))
        return booked

    return call.tap([out], [x] if weighted else [], [o for o in (weight, bias) if call.is_private(o)], book)[0]


RULES[F.linear] = linear
RULES[torch.addmm] = addmm
