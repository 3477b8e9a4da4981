"""Bringing activations and gradients to ``[B, T, features]``."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor


def by_position(x: Tensor, batch: int) -> Tensor:
    """``[B, .., features]``, or sample-major ``[B k, .., features]``, to ``[B, T, features]``."""
    positions = prod(x.shape[1:-1]) * (x.shape[0] // batch if batch else 1)
    return x.reshape(batch, positions, x.shape[-1])


def by_sample(x: Tensor, batch: int) -> Tensor:
    """``[B, ..]``, or sample-major ``[B k, ..]``, to ``[B, k, ..]``."""
    return x.reshape(batch, x.shape[0] // batch if batch else 1, *x.shape[1:])


def autocast_to(x: Tensor) -> Tensor:
    """The input as autocast hands it to a matrix product: so that what is booked is what was multiplied."""
    kind = x.device.type
    if x.is_floating_point() and x.dtype != torch.float64 and torch.is_autocast_enabled(kind):
        return x.to(torch.get_autocast_dtype(kind))
    return x
