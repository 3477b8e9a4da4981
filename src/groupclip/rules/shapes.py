"""Bringing activations and gradients to ``[B, T, features]``."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from ..layout import Axis


def by_position(x: Tensor, axis: Axis, batch: int) -> Tensor:
    """``[.., features]`` to ``[B, T, features]``."""
    x = axis.split(x, batch)
    return x.reshape(batch, prod(x.shape[1:-1]), x.shape[-1])


def autocast_to(x: Tensor) -> Tensor:
    """The input as autocast hands it to a matrix product: so that what is booked is what was multiplied."""
    kind = x.device.type
    if x.is_floating_point() and x.dtype != torch.float64 and torch.is_autocast_enabled(kind):
        return x.to(torch.get_autocast_dtype(kind))
    return x
