"""``F.embedding_bag``: sums, means or maxima of rows of a table, one for each bag of ids.

A bag is looked up as a sequence is (:mod:`.embedding`), each id with the weight that it has in the result. Bags of unequal
length, given by offsets, go bag by bag.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..autograd.dispatch import CHECKS, RULES
from ..autograd.operation import Call, NotSplit
from ..errors import UnsupportedOperation
from ..persample.base import PerSample
from ..persample.lookup import Lookup


def embedding_bag(
    call: Call, input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None, norm_type: float = 2,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """Take ``input`` integers ``[K, T]``, or ``[N]`` with ``offsets [K]``, for K bags of a sample; ``weight [V, d]``."""
    del max_norm, norm_type, scale_grad_by_freq, sparse
    if call.is_private(per_sample_weights) or not call.is_private(weight):
        raise NotSplit
    count, dim = weight.shape
    padding = -1 if padding_idx is None else padding_idx % count
    given = call.samples(input)  # [size, K, T] or [size, N]
    weights = None if per_sample_weights is None else call.samples(per_sample_weights)
    if input.dim() == 1:
        bags = _bags(call, offsets, include_last_offset, input.shape[0])
        ids, weights, there = _padded(given, weights, bags)
    elif input.dim() == 2:
        ids, there = given, None
    else:
        raise NotSplit
    there = (ids != padding) if there is None else there & (ids != padding)

    def book(saved: Sequence[Tensor], grads: Sequence[Tensor]) -> list[PerSample]:
        return [Lookup(saved[0].flatten(1), grads[0].reshape(*saved[0].flatten(1).shape, dim), count)]

    rows = call.tap([F.embedding(ids, call.value(weight))], [ids], [weight], book)[0]  # [size, K, T, d]
    if mode == "max":
        if rows.shape[2] == 0:
            return rows.sum(dim=2)
        highest = rows.masked_fill(~there.unsqueeze(-1), float("-inf")).max(dim=2).values
        return torch.where(there.any(dim=2, keepdim=True), highest, 0.0)
    factors = there.to(rows.dtype) if weights is None else torch.where(there, weights, 0.0)
    if mode == "mean":
        factors = factors / factors.sum(dim=2, keepdim=True).clamp(min=1)
    return torch.einsum("bkt,bktd->bkd", factors, rows)


def _bags(call: Call, offsets: Tensor | None, last: bool, length: int) -> list[tuple[int, int]]:
    """Return where each bag of a sample begins and ends: the same for all samples that run together."""
    if offsets is None:
        raise NotSplit
    found = call.samples(offsets)
    if found.shape[0] == 0 or not bool((found == found[0]).all()):
        raise NotSplit
    starts = found[0].tolist()
    ends = [*starts[1:], length]
    return list(zip(starts[:-1], ends[:-1], strict=True)) if last else list(zip(starts, ends, strict=True))


def _padded(ids: Tensor, weights: Tensor | None, bags: list[tuple[int, int]]) -> tuple[Tensor, Tensor | None, Tensor]:
    """Bags ``[size, K, T]`` as long as the longest, and where they have an id."""
    longest = max((end - start for start, end in bags), default=0)
    at = torch.tensor([[min(start + t, end - 1) if end > start else 0 for t in range(longest)] for start, end in bags])
    there = torch.tensor([[t < end - start for t in range(longest)] for start, end in bags], dtype=torch.bool)
    at, there = at.long().reshape(len(bags), longest).to(ids.device), there.reshape(len(bags), longest).to(ids.device)
    if ids.shape[1] == 0:
        at, there = at[:, :0], there[:, :0]
    return ids[:, at], None if weights is None else weights[:, at], there.expand(len(ids), *there.shape)


def check(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None, norm_type: float = 2,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False, padding_idx: int | None = None,
) -> None:  # fmt: skip
    """Refuse what reads or writes the table across samples."""
    del input, weight, offsets, norm_type, mode, sparse, per_sample_weights, include_last_offset, padding_idx
    if max_norm is not None:
        raise UnsupportedOperation(
            "embedding_bag with max_norm rewrites rows of the table that the batch reads, before any noise: the table would "
            "show which rows were read. Leave max_norm out"
        )
    if scale_grad_by_freq:
        raise UnsupportedOperation(
            "embedding_bag with scale_grad_by_freq divides by how often an id occurs in the batch, so a sample's gradient "
            "would depend on the others. Leave scale_grad_by_freq out"
        )


RULES[F.embedding_bag] = embedding_bag
CHECKS[F.embedding_bag] = check
