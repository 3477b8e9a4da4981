"""The sums of all ranks become one, with noise on it, in every rank: each coordinate has one owner, who adds its noise.

A bucket of coordinates is summed in one rank, its owner. The owner adds noise and sends the private sum to all. So there is one
noise on every coordinate, whole from the first: none is put together from shares. No rank but the owner holds the sum without
noise, no key is shared, and all ranks hold the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..packing import by_room
from .ranks import Ranks

ROOM = 1 << 20  # coordinates that are summed together at most: small ones are drawn by owners while others are sent


@dataclass(frozen=True, eq=False)
class Bucket:
    """Coordinates that are summed together: flat views of tensors, all of one dtype and device, whose noise is alike.

    Attributes:
        views: of the tensors' memory.
        std: of the noise.
        owner: the rank that adds it.
    """

    views: tuple[Tensor, ...]
    std: float
    owner: int

    def joined(self) -> Tensor:
        """Return all coordinates in one tensor: the memory itself where it is one piece."""
        return self.views[0] if len(self.views) == 1 else torch.cat(self.views)

    def put_back(self, joined: Tensor) -> None:
        """Write all coordinates."""
        if len(self.views) > 1:
            pieces = joined.split([view.numel() for view in self.views])
            torch._foreach_copy_(list(self.views), list(pieces))  # pyright: ignore[reportPrivateImportUsage]


def buckets(sums: Sequence[tuple[Tensor, float]], ranks: Ranks) -> Iterator[Bucket]:
    """Deal the coordinates of contiguous tensors to buckets, and these to owners, by public sizes alone: alike on all ranks."""
    alike: dict[tuple[float, torch.dtype, torch.device], list[Tensor]] = {}
    for tensor, std in sums:
        flat = tensor.detach().view(-1)
        alike.setdefault((std, tensor.dtype, tensor.device), []).extend(flat.split(ROOM))
    loads = [0] * ranks.size
    for (std, _, _), views in alike.items():
        for few in by_room([view for view in views if view.numel()], Tensor.numel, ROOM):
            owner = loads.index(min(loads))
            loads[owner] += sum(view.numel() for view in few)
            yield Bucket(tuple(few), std, owner)


def release(ranks: Ranks, sums: Sequence[tuple[Tensor, float]], make_private: Callable[[Tensor, float], None]) -> None:
    """Put the sum over all ranks, made private, into the tensors of every rank. All ranks must call it.

    Args:
        ranks: that keep these coordinates.
        sums: contiguous tensors of this rank's samples, each with the standard deviation of its noise. Names, sizes and order are
            those of all ranks.
        make_private: adds noise of this standard deviation to a sum over all ranks, in place. Each coordinate goes to it in one
            rank.

    Raises:
        RuntimeError: a rank was lost. What is in the tensors then is no gradient.
    """
    distributed = torch.distributed
    dealt = [(bucket, bucket.joined()) for bucket in buckets(sums, ranks)]
    summed = [
        distributed.reduce(joined, group=ranks.group, group_dst=bucket.owner, async_op=True) for bucket, joined in dealt
    ]
    for (bucket, joined), work in zip(dealt, summed, strict=True):
        _finish(work)
        if bucket.owner == ranks.rank:
            make_private(joined, bucket.std)
    sent = [
        distributed.broadcast(joined, group=ranks.group, group_src=bucket.owner, async_op=True)
        for bucket, joined in dealt
    ]
    for (bucket, joined), work in zip(dealt, sent, strict=True):
        _finish(work)
        bucket.put_back(joined)


def _finish(work: Any) -> None:
    if work is not None:
        work.wait()
