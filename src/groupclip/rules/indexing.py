"""``table[ids]``: rows of a parameter, told by an index that differs from sample to sample."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..autograd.dispatch import RULES
from ..autograd.operation import Call, NotSplit
from ..persample.base import PerSample
from ..persample.lookup import Lookup

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)  # bool and uint8 are masks


def getitem(call: Call, self: Tensor, index: object) -> Tensor:
    """Take ``self [V, d]``, a parameter, and ``index`` integers ``[..]`` of every sample."""
    if not call.is_private(self) or self.dim() != 2 or not isinstance(index, Tensor) or index.dtype not in _INTEGERS:
        raise NotSplit
    given = call.samples(index).long()  # [B, ..]
    ids = torch.where(given < 0, given + self.shape[0], given)
    out = F.embedding(ids, call.value(self))

    def book(saved: Sequence[Tensor], grads: Sequence[Tensor]) -> list[PerSample]:
        rows = saved[0].flatten(1) if saved[0].dim() > 1 else saved[0].unsqueeze(1)  # a number of every sample
        return [Lookup(rows, grads[0].reshape(*rows.shape, -1), self.shape[0])]

    return call.tap([out], [ids], [self], book)[0]


RULES[Tensor.__getitem__] = getitem
