"""Noise on all parameters of a step: on the small ones, of which a model has hundreds, in one draw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..packing import by_room
from .sources import NoiseSource, StreamNoise

SMALL = 1 << 14  # coordinates; a draw costs as much as these before it has drawn anything
_ROOM = 1 << 16  # coordinates that are copied together at most


def add_to_all(noise: NoiseSource, sums: Sequence[tuple[Tensor, float]]) -> None:
    """Adds independent ``N(0, std^2)`` to every coordinate of every tensor, in place.

    Args:
        noise: its source. Coordinates are independent, so several tensors may be given to it as one.
        sums: tensors, each with its standard deviation.
    """
    alike: dict[tuple[float, torch.dtype, torch.device], list[Tensor]] = {}
    large: list[tuple[Tensor, float]] = []
    for tensor, std in sums:
        if tensor.numel() <= SMALL and tensor.layout == torch.strided and tensor.is_contiguous():
            alike.setdefault((std, tensor.dtype, tensor.device), []).append(tensor)
        else:
            large.append((tensor, std))
    if isinstance(noise, StreamNoise):  # a source of the user's own has no more than add_
        noise.add_to_each_(large)
    else:
        for tensor, std in large:
            noise.add_(tensor, std)
    for (std, _, _), tensors in alike.items():
        for few in by_room(tensors, Tensor.numel, _ROOM):
            if len(few) == 1:
                noise.add_(few[0], std)
                continue
            together = torch.cat([tensor.view(-1) for tensor in few])
            noise.add_(together, std)
            pieces = together.split([tensor.numel() for tensor in few])
            torch._foreach_copy_(few, [piece.view_as(tensor) for piece, tensor in zip(pieces, few, strict=True)])  # pyright: ignore[reportPrivateImportUsage]


def together_at_most(sizes: Iterable[int]) -> int:
    """Return how many coordinates of small tensors of these sizes are copied and drawn in one; 0 where none are."""
    draws = by_room([size for size in sizes if size <= SMALL], int, _ROOM)
    return max((sum(few) for few in draws if len(few) > 1), default=0)
