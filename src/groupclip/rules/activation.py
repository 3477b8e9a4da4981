"""``prelu``: the one activation of torch with a parameter."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import Call, NotSplit
from ..layout import Axis
from ..persample.base import PerSample
from ..persample.dense import Dense
from ..private import RULES
from .broadcast import sum_to


def prelu(call: Call, input: Any, weight: Any) -> Tensor:
    """``weight [C]``, the second dimension of the input, or ``[1]``: ``max(0, x) + weight min(0, x)``."""
    x, axis = call.activation(input)
    out = F.prelu(x, call.value(weight))
    if not call.is_private(weight):
        return out
    channels = weight.numel() > 1
    if channels and axis is Axis.SECOND:
        raise NotSplit
    batch, own, x_dtype = call.batch, weight.shape, x.dtype
    aligned = torch.Size([weight.numel(), *[1] * (x.dim() - 2)] if channels else [])

    def book(saved: Any, grads: Any) -> list[PerSample]:
        slopes = grads[0].to(torch.promote_types(x_dtype, torch.float32)) * saved[0].clamp(max=0)
        return [Dense(sum_to(slopes, axis, aligned, batch).reshape(batch, *own))]

    return call.tap([out], [x], [weight], book)[0]


RULES[torch.prelu] = RULES[F.prelu] = RULES[Tensor.prelu] = prelu
