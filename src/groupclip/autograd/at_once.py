"""Operations on all samples at once, which keep them apart by what they are: quicker than vmap, or where it has no rule."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from .vmap import NestedLevel, Part, natively


def _attention(
    part: Part, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Fused kernels take any number of sequences in dimension 0; they have no batching rule on the CPU."""
    dims = query.dim()
    if dims not in (3, 4) or key.dim() != dims or value.dim() != dims:
        raise NestedLevel
    front = query.shape[0] if dims == 4 else 1  # sequences of a sample
    with natively():
        tensors = [part.physical(t) if part.holds(t) else part.each(t) for t in (query, key, value)]
        tensors = [t.flatten(0, 1) if dims == 4 else t for t in tensors]
        mask = attn_mask
        if mask is not None and part.holds(mask):
            mask = part.physical(mask)
            mask = mask[(slice(None), *[None] * (dims - mask.dim() + 1))]  # [size, .., L, S] with as many dimensions
            if dims == 4:
                mask = mask.expand(-1, front, *mask.shape[2:]).flatten(0, 1)
        elif mask is not None and dims == 4 and mask.dim() == 4 and mask.shape[0] != 1:
            mask = part.each(mask).flatten(0, 1)
        elif mask is not None and dims == 3 and mask.dim() == 3 and mask.shape[0] != 1:
            mask = part.each(mask)
        if dims == 3:
            tensors = [t if t.dim() == 4 else t.unsqueeze(1) for t in tensors]
        q, k, v = tensors
        out = F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return part.logical(out.unflatten(0, (part.size, front)) if dims == 4 else out)


def _sdpa(part: Part, func: Any, args: Any, kwargs: Any) -> Any:
    del func
    return _attention(part, *args, **kwargs)


def _dropout(part: Part, func: Any, args: Any, kwargs: Any) -> Any:
    """Entry by entry and drawn for each: the same on all samples at once, without what vmap costs."""
    if not isinstance(args[0], Tensor) or kwargs.get("inplace", len(args) > 3 and args[3]):
        raise NestedLevel
    with natively():
        return part.logical(func(part.physical(args[0]), *args[1:], **kwargs))


#: operation -> what is done in its stead when a sample's tensor takes part.
AT_ONCE: dict[Any, Any] = {F.scaled_dot_product_attention: _sdpa, F.dropout: _dropout}
