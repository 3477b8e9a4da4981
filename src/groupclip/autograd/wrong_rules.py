"""Operations whose batching rule in torch is wrong, for some of their arguments: these go another way.

Found by a search over all operations of torch 2.13, each against single samples.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .one_by_one import one_by_one
from .vmap import NestedLevel, Part


def _filled(part: Part, func: Any, args: Any, kwargs: Any) -> Any:
    """Fill with each sample's own number: torch mixes them up where what is filled isn't of samples."""
    value = kwargs.get("value", args[-1])
    if not isinstance(value, Tensor) or not part.holds(value):
        raise NestedLevel
    return one_by_one(part, func, args, kwargs)


def _looked_up(
    part: Part, input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """Cut off the gradient of the padding's row, which isn't left out where each sample has a table of its own."""
    if padding_idx is None or not part.holds(weight):
        raise NestedLevel
    at = torch.arange(len(weight), device=weight.device) == padding_idx % len(weight)
    table = torch.where(at.unsqueeze(1), weight.detach(), weight)
    return F.embedding(input, table, None, max_norm, norm_type, scale_grad_by_freq, sparse)


def _embedding(part: Part, func: Any, args: Any, kwargs: Any) -> Any:
    del func
    return _looked_up(part, *args, **kwargs)


def _torch_embedding(part: Part, func: Any, args: Any, kwargs: Any) -> Any:
    del func

    def read(
        weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
    ) -> Tensor:
        padding = None if padding_idx < 0 else padding_idx
        return _looked_up(part, indices, weight, padding, None, 2.0, scale_grad_by_freq, sparse)

    return read(*args, **kwargs)


#: operation -> what is done in its stead when a sample's tensor takes part.
WRONG: dict[Any, Any] = {
    F.embedding: _embedding,
    **dict.fromkeys((torch.embedding, torch.ops.aten.embedding, torch.ops.aten.embedding.default), _torch_embedding),
    **dict.fromkeys(
        (torch.select_scatter, Tensor.select_scatter, torch.ops.aten.select_scatter, torch.ops.aten.select_scatter.default),
        one_by_one,
    ),
    **dict.fromkeys(
        (torch.index_fill, Tensor.index_fill, Tensor.index_fill_, torch.ops.aten.index_fill, torch.ops.aten.index_fill.int_Tensor),
        _filled,
    ),
}
if hasattr(F, "linear_cross_entropy"):
    WRONG[F.linear_cross_entropy] = one_by_one
