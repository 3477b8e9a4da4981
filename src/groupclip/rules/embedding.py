"""``F.embedding``: rows of a table."""

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


def embedding(
    call: Call, input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """Take ``input`` integers ``[..]``, ``weight [V, d]``."""
    del max_norm, norm_type, scale_grad_by_freq, sparse  # the gradient that comes out is dense: noise is
    if not call.is_private(weight):
        raise NotSplit
    count, dim = weight.shape
    padding = None if padding_idx is None else padding_idx % count
    given = call.samples(input)
    out = F.embedding(given, call.value(weight), padding_idx)

    def book(saved: Sequence[Tensor], grads: Sequence[Tensor]) -> list[PerSample]:
        ids = saved[0].flatten(1) if saved[0].dim() > 1 else saved[0].unsqueeze(1)
        g = grads[0].reshape(*ids.shape, dim)
        if padding is not None:
            g = torch.where((ids == padding).unsqueeze(-1), 0.0, g)
        return [Lookup(ids, g, count)]

    return call.tap([out], [given], [weight], book)[0]


def check(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> None:  # fmt: skip
    """Refuse what reads or writes the table across samples."""
    del input, weight, padding_idx, norm_type, sparse
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


RULES[F.embedding] = embedding
CHECKS[F.embedding] = check
