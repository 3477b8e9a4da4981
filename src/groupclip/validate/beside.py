"""Draws of samples side by side: what torch draws for all of them at once is taken apart, and each sample's put in its place.

Below ``torch.vmap`` a draw that a sample alone makes in the shape ``[..]`` comes in the shape ``[size, ..]``. What runs natively on
all samples may have them in another dimension (a recurrent layer's dropout), and what torch can't do at once comes in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .kinds import Drawn

Draw = Callable[[int, Sequence[Any]], Any]


@dataclass(frozen=True)
class Layout:
    """Says where the samples lie in a draw.

    Attributes:
        shape: of its first tensor, or of the numbers that it is to make.
        axis: the dimension.
        share: how long a sample is in it; None: it is a dimension of the samples' own.
    """

    shape: tuple[int, ...]
    axis: int
    share: int | None


def layout(one: Drawn | None, args: Sequence[Any], size: int) -> Layout | None:
    """Find the layout of a draw for ``size`` samples by what one alone draws at that place; None if nothing tells."""
    shape = asked(args)
    own = None if one is None else one.asked
    if shape and shape[0] == size and (own is None or len(shape) == len(own) + 1):
        return Layout(shape, 0, None)
    if own is None or len(shape) != len(own):
        return None
    for axis, (here, alone) in enumerate(zip(shape, own, strict=True)):
        if here != alone and here == size * alone:
            return Layout(shape, axis, alone)
    return None


def asked(args: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape of the first tensor that a draw is given, or of the numbers that it is to make."""
    for value in args:
        if isinstance(value, Tensor):
            return tuple(value.shape)
        if isinstance(value, (list, tuple)):
            return tuple(value)
    return ()


def drawn_apart(where: Layout, args: Sequence[Any], size: int, draw: Draw) -> Any:
    """Return the draw of all samples.

    Args:
        where: they lie.
        args: of the draw.
        size: how many.
        draw: makes that of the sample at place ``i`` from its own arguments.
    """
    parts = [draw(i, [_own(where, value, i) for value in args]) for i in range(size)]
    if args and isinstance(args[0], Tensor) and _is_part_of(parts[0], args[0]):
        return args[0]  # in place
    if isinstance(parts[0], Tensor):
        return _together(where, parts)
    return tuple(_together(where, list(items)) for items in zip(*parts, strict=True))


def _own(where: Layout, value: Any, i: int) -> Any:
    shape, axis, share = where.shape, where.axis, where.share
    if isinstance(value, Tensor):
        if value.dim() != len(shape) or value.shape[axis] != shape[axis]:
            return value
        return value.select(axis, i) if share is None else value.narrow(axis, i * share, share)
    if isinstance(value, (list, tuple)) and tuple(value) == shape:
        return [*shape[:axis], *(() if share is None else (share,)), *shape[axis + 1 :]]
    return value


def _together(where: Layout, parts: list[Tensor]) -> Tensor:
    return torch.stack(parts, where.axis) if where.share is None else torch.cat(parts, where.axis)


def _is_part_of(x: Any, y: Tensor) -> bool:
    return isinstance(x, Tensor) and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
