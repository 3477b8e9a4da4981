"""``F.embedding_bag``: sums, means or maxima of rows of a table, one for each bag of ids.

A bag is looked up as a sequence is (:mod:`.embedding`), each id with the weight that it has in the result. Bags of unequal
length, given by offsets, are padded with ids of weight zero.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import Call, NotSplit
from ..errors import UnsupportedOperation
from ..layout import Axis
from ..persample.base import PerSample
from ..persample.lookup import Lookup
from ..private import RULES
from .ragged import Ragged


def embedding_bag(
    call: Call, input: Any, weight: Any, offsets: Tensor | None = None, max_norm: float | None = None, norm_type: float = 2,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Any = None,
    include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """``input`` integers ``[B, T]``, or ``[N]`` with ``offsets``; ``weight [V, d]``; the result is ``[B, d]``."""
    del norm_type, sparse  # the gradient that comes out is dense: noise is
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
    if call.is_private(input) or call.is_private(per_sample_weights) or not call.is_private(weight):
        raise NotSplit
    bags = None
    if input.dim() == 2:
        axis = call.axis(input, 0)
        if axis not in (Axis.MAJOR, Axis.MINOR):
            raise NotSplit
    else:
        axis = Axis.MAJOR
        bags = _by_offsets(call, input, offsets, include_last_offset)
    count = weight.shape[0]
    padding = -1 if padding_idx is None else padding_idx % count
    if mode == "max":
        return _maxima(call, input, weight, axis, bags, padding)
    out = F.embedding_bag(
        input,
        call.value(weight),
        offsets,
        None,
        2.0,
        False,
        mode,
        False,
        per_sample_weights,
        include_last_offset,
        padding_idx,
    )
    batch = call.batch

    def book(saved: Any, grads: Any) -> list[PerSample]:
        wide = torch.promote_types(grads[0].dtype, torch.float32)
        ids, weights = saved[0], torch.ones_like(saved[0], dtype=wide) if len(saved) == 1 else saved[1]
        weights = weights.to(wide).masked_fill(ids == padding, 0)
        if bags is not None:
            ids, weights = bags.padded(ids), bags.padded(weights)
        if mode == "mean":
            weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=1)
        ids, weights, g = (axis.split(t, batch) for t in (ids, weights, grads[0]))  # [B, k, T], [B, k, T], [B, k, d]
        rows = weights.unsqueeze(-1) * g.unsqueeze(2)
        return [Lookup(ids.flatten(1), rows.flatten(1, 2), count)]

    saved = [input] if per_sample_weights is None else [input, per_sample_weights]
    return call.tap([out], saved, [weight], book)[0]


def _by_offsets(call: Call, ids: Tensor, offsets: Tensor | None, last: bool) -> Ragged:
    """Bags given by where each begins (and, if ``last``, where the last one ends)."""
    if offsets is None:
        raise NotSplit
    starts = offsets[:-1] if last else offsets
    if len(starts) != call.batch or len(ids) == 0 or int(starts[0]) != 0 or (last and int(offsets[-1]) != len(ids)):
        raise NotSplit
    lengths = torch.diff(starts, append=starts.new_tensor([len(ids)]))
    owner = torch.arange(len(starts), device=ids.device).repeat_interleave(lengths)
    place = torch.arange(len(ids), device=ids.device) - starts[owner]
    bags = Ragged(owner, place, len(starts), int(lengths.max()))
    bags.check(call, ids, 1)
    return bags


def _maxima(call: Call, input: Tensor, weight: Any, axis: Axis, bags: Ragged | None, padding: int) -> Tensor:
    """Looked up, then the largest of each column: torch's own gradient goes to the row that had it. An empty bag has zeros."""
    ids, given = input, torch.ones_like(input, dtype=torch.bool)
    if bags is not None:
        ids, given = bags.padded(ids), bags.padded(given)
    given = (given & (ids != padding)).unsqueeze(-1)
    batch, (count, dim) = call.batch, weight.shape

    def book(saved: Any, grads: Any) -> list[PerSample]:
        split = axis.split(saved[0], batch).flatten(1)
        return [Lookup(split, axis.split(grads[0], batch).reshape(*split.shape, dim), count)]

    rows = call.tap([F.embedding(ids, call.value(weight))], [ids], [weight], book)[0]
    if rows.shape[1] == 0:
        return rows.sum(dim=1)
    highest = rows.masked_fill(~given, float("-inf")).max(dim=1).values
    return torch.where(given.any(dim=1), highest, 0.0)


RULES[F.embedding_bag] = embedding_bag
