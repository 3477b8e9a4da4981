"""``F.linear`` and ``torch.addmm``: the layers that hold most parameters."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..autograd.dispatch import RULES
from ..autograd.operation import Call, NotSplit
from ..persample.base import PerSample
from ..persample.dense import Dense
from ..persample.outer import Outer
from .shapes import autocast_to, by_position, summed


def linear(call: Call, input: Any, weight: Any, bias: Any = None) -> Tensor:
    """Take ``input [.., d]``, ``weight [p, d]``, ``bias [p]``."""
    if call.value(weight).dim() != 2 or call.holds(weight) or call.holds(bias):
        raise NotSplit
    x = autocast_to(call.samples(input))
    out = F.linear(x, call.value(weight), call.value(bias))
    return _book(call, out, x, weight, bias, inputs_first=False)


def addmm(call: Call, input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Take ``input [p] + mat1 [N, d] @ mat2 [d, p]``: HF's Conv1D."""
    if beta != 1 or alpha != 1 or input.dim() != 1 or call.holds(mat2):
        raise NotSplit
    x = autocast_to(call.samples(mat1))
    if call.holds(input):
        return _book(call, x @ call.value(mat2) + call.samples(input).unsqueeze(1), x, mat2, None, inputs_first=True)
    rows = torch.addmm(call.value(input), x.flatten(0, 1), call.value(mat2))
    return _book(call, rows.unflatten(0, x.shape[:2]), x, mat2, input, inputs_first=True)


def _book(call: Call, out: Tensor, x: Tensor, weight: Any, bias: Any, inputs_first: bool) -> Tensor:
    weighted, biased = call.is_private(weight), call.is_private(bias)

    def book(saved: Any, grads: Any) -> list[PerSample]:
        g = by_position(grads[0])
        booked: list[PerSample] = []
        if weighted:
            booked.append(Outer(by_position(saved[0]), g, inputs_first))
        if biased:
            booked.append(Dense(summed(g, (1,))))
        return booked

    return call.tap([out], [x] if weighted else [], [weight] * weighted + [bias] * biased, book)[0]


RULES[F.linear] = linear
RULES[torch.addmm] = addmm
