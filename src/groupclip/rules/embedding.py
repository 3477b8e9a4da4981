"""``F.embedding``: rows of a table."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import Call, NotSplit
from ..derived import derive
from ..errors import UnsupportedOperation
from ..layout import Axis
from ..persample.base import PerSample
from ..persample.lookup import Lookup
from ..private import RULES


def embedding(
    call: Call, input: Any, weight: Any, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """``input`` integers ``[B, ..]``, ``weight [V, d]``.

    Ids that don't come from the batch are positions or types, maybe as many as the samples. What they look up stays a
    private tensor until it meets the batch.
    """
    del norm_type, sparse  # the gradient that comes out is dense: noise is
    if max_norm is not None:
        raise UnsupportedOperation(
            "embedding with max_norm rewrites rows of the table that the batch reads, before any noise: the table would "
            "show which rows were read. Leave max_norm out"
        )
    if scale_grad_by_freq:
        raise UnsupportedOperation(
            "embedding with scale_grad_by_freq divides by how often an id occurs in the batch, so a sample's gradient would "
            "depend on the others. Leave scale_grad_by_freq out"
        )
    if call.is_private(input):
        raise NotSplit

    def looked_up(axis: Axis) -> Tensor:
        out = F.embedding(input, call.value(weight), padding_idx)
        return call.tap([out], [input], [weight], _book(call.batch, axis, weight.shape, padding_idx))[0]

    axis = call.axis(input, 0)
    if axis not in (Axis.CONSTANT, Axis.MIXED):
        return looked_up(axis)
    # Positions, types: a lookup in a constant depends on the table alone, until it meets the batch.
    readable = input.dim() > 0 and input.shape[0] == call.batch
    different = padding_idx is None and input.unique().numel() == input.numel()
    return derive(call, (lambda: looked_up(Axis.MAJOR)) if readable else None, picks=different)


def _book(batch: int, axis: Axis, shape: torch.Size, padding_idx: int | None) -> Any:
    count, dim = shape
    padding = None if padding_idx is None else padding_idx % count

    def book(saved: Any, grads: Any) -> list[PerSample]:
        ids = axis.split(saved[0], batch).flatten(1)
        g = axis.split(grads[0], batch).reshape(*ids.shape, dim)
        if padding is not None:
            g = torch.where((ids == padding).unsqueeze(-1), 0.0, g)
        return [Lookup(ids, g, count)]

    return book


RULES[F.embedding] = embedding
