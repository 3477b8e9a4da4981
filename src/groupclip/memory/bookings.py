"""Per-sample gradients as they are booked: what one norm method keeps of them, and what their form depends on."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..nested import tensors_in
from ..persample.base import PerSample

#: Products of these take half as long as of float32, on processors that have them.
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Booking:
    """One use of one parameter in one norm method. Bytes.

    Attributes:
        held: kept until the group ends, beside what was there.
        keeps: what was there is kept until then too.
        small: of it, what is laid side by side with others when the group ends.
        norming, closing: the most above the level before, for the norms and for the clipped sum.
        gradient: of the clipped sum.
        flops, moved: floating point operations, and bytes read and written, of norms and clipped sum. Products of half precision
            count half: they take half as long.
    """

    held: int
    keeps: bool
    small: int
    norming: int
    closing: int
    gradient: int
    flops: int
    moved: int


def anew(samples: PerSample) -> PerSample:
    """Return the same gradients, of which no norm is known yet."""
    copied = copy.copy(samples)
    for name, value in vars(samples).items():
        if isinstance(value, PerSample):
            setattr(copied, name, anew(value))
    return copied


def form_of(samples: PerSample) -> tuple[Any, ...] | None:
    """Return what the bytes and the work of per-sample gradients depend on; None where that isn't known."""
    form: list[Any] = [type(samples)]
    for name, value in vars(samples).items():
        if isinstance(value, PerSample):
            value = form_of(value)
            if value is None:
                return None
        elif isinstance(value, Tensor):
            if value.requires_grad:  # it depends on a graph
                return None
            value = value.shape, value.stride(), value.dtype
        form.append((name, value))
    try:
        hash(tuple(form))
    except TypeError:
        return None
    return tuple(form)


def tensors_of(samples: PerSample) -> Iterator[Tensor]:
    """Yield the tensors of per-sample gradients."""
    for value in vars(samples).values():
        if isinstance(value, PerSample):
            yield from tensors_of(value)
        else:
            yield from tensors_in(value)
