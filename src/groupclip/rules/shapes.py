"""Bringing activations and gradients to ``[B, T, features]``."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor


def by_position(x: Tensor) -> Tensor:
    """Turn ``[B, .., features]`` into ``[B, T, features]``."""
    return x if x.dim() == 3 else x.reshape(x.shape[0], prod(x.shape[1:-1]), x.shape[-1])


def summed(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return a sum over positions, in float32 or better: it is ONE gradient of the sample, and is normed as such."""
    return x.sum(dim=dims, dtype=torch.promote_types(x.dtype, torch.float32)) if dims else x


def autocast_to(x: Tensor) -> Tensor:
    """Return the input as autocast hands it to a matrix product: so that what is booked is what was multiplied."""
    kind = x.device.type
    if x.is_floating_point() and x.dtype != torch.float64 and torch.is_autocast_enabled(kind):
        return x.to(torch.get_autocast_dtype(kind))
    return x
