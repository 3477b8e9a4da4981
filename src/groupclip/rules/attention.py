"""``F.multi_head_attention_forward``, the function behind ``nn.MultiheadAttention`` and ``nn.Transformer*``.

It asks for the override once, at the top, and hides four matrix products behind it. Here it is written out in terms
of the other rules, so that projections are booked like any linear layer. The samples are dimension 1 of its inputs.

Legend: N samples, L queries, S keys, E features, H heads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..autograd.dispatch import WRITTEN_OUT, dispatch_or_run
from ..autograd.operation import Call, NotSplit
from ..autograd.reads import run
from ..autograd.vmap import Part, natively


def multi_head_attention(
    call: Call, query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int,
    in_proj_weight: Tensor | None, in_proj_bias: Tensor | None, bias_k: Tensor | None, bias_v: Tensor | None, add_zero_attn: bool,
    dropout_p: float, out_proj_weight: Tensor, out_proj_bias: Tensor | None, training: bool = True,
    key_padding_mask: Tensor | None = None, need_weights: bool = True, attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False, q_proj_weight: Tensor | None = None, k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None, static_k: Tensor | None = None, static_v: Tensor | None = None,
    average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Compute what torch's operation does; attention dropout draws as many random numbers as torch, in another order."""
    del embed_dim_to_check
    if static_k is not None or static_v is not None or query.dim() != 3 or call.is_private(attn_mask):
        raise NotSplit
    same = query is key and key is value
    q, k, v = (t.transpose(0, 1) for t in (query, key, value))  # [N, L or S, E]
    weights = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else in_proj_weight
    q, k, v = _project(call, q, k, v, weights, in_proj_bias, same)
    batch = q.shape[0]
    mask = _mask(attn_mask, key_padding_mask, batch, num_heads, q.dtype)
    if bias_k is not None and bias_v is not None:  # torch has both, or none
        k, v = (_append(call, t, b) for t, b in ((k, bias_k), (v, bias_v)))
        mask = _open_one_more(mask)
    if add_zero_attn:
        k, v = (F.pad(t, (0, 0, 0, 1)) for t in (k, v))
        mask = _open_one_more(mask)
    q, k, v = (t.unflatten(2, (num_heads, -1)).transpose(1, 2) for t in (q, k, v))  # [N, H, L or S, E/H]
    dropout = dropout_p if training else 0.0
    scores: Tensor | None = None
    if need_weights:
        logits = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        scores = torch.softmax(logits if mask is None else logits + mask, dim=-1)
        out = F.dropout(scores, dropout) @ v
    else:
        out = run(call.part, F.scaled_dot_product_attention, (q, k, v, mask, dropout, is_causal and mask is None), {})
    out = out.transpose(1, 2).flatten(2)
    out = dispatch_or_run(call, F.linear, out, out_proj_weight, out_proj_bias).transpose(0, 1)
    if scores is not None and average_attn_weights:
        scores = scores.mean(dim=1)
    return out, scores


def _project(
    call: Call, q: Tensor, k: Tensor, v: Tensor, weights: tuple[Tensor | None, ...] | Tensor | None, bias: Tensor | None, same: bool
) -> list[Tensor]:  # fmt: skip
    if isinstance(weights, tuple):
        parts = weights
    elif same:  # one matrix of 3E rows, used once
        return list(dispatch_or_run(call, F.linear, q, weights, bias).chunk(3, dim=-1))
    else:
        parts = dispatch_or_run(call, Tensor.chunk, weights, 3)
    biases = (None, None, None) if bias is None else dispatch_or_run(call, Tensor.chunk, bias, 3)
    return [dispatch_or_run(call, F.linear, x, w, b) for x, w, b in zip((q, k, v), parts, biases, strict=True)]


def _append(call: Call, x: Tensor, token: Tensor) -> Tensor:
    """Return ``x [N, S, E]`` with a learnt position ``[1, 1, E]`` at the end."""
    token = dispatch_or_run(call, Tensor.expand, token, x.shape[0], 1, x.shape[2])
    return dispatch_or_run(call, torch.cat, [x, token], 1)


def _mask(
    attn_mask: Tensor | None, padding: Tensor | None, batch: int, heads: int, dtype: torch.dtype
) -> Tensor | None:
    """Return one additive mask that broadcasts to ``[N, H, L, S]``."""
    mask = None
    if attn_mask is not None:
        mask = _additive(attn_mask, dtype)
        mask = mask.unflatten(0, (batch, heads)) if mask.dim() == 3 else mask[None, None]
    if padding is not None:
        padded = _additive(padding, dtype)[:, None, None, :]
        mask = padded if mask is None else mask + padded
    return mask


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))


def _open_one_more(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else F.pad(mask, (0, 1))


def scaled_dot_product(
    call: Call, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Write out attention with a learnt bias for a mask (T5, BEiT, Swin), so that the bias is added like any other.

    So does torch, where a mask takes gradients; rows that are masked as a whole attend to nothing.
    """
    if is_causal or enable_gqa or not call.is_private(attn_mask) or any(map(call.is_private, (query, key, value))):
        raise NotSplit
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = dispatch_or_run(call, torch.add, scores, attn_mask)
    return F.dropout(_safe_softmax(call.part, scores), dropout_p) @ value


def _safe_softmax(part: Part, scores: Tensor) -> Tensor:
    """Make a row that is masked as a whole zero. Torch's operation keeps its output only, and has no batching rule."""
    if part.on_top and part.holds(scores):
        with natively():
            return part.logical(torch.ops.aten._safe_softmax(part.physical(scores), -1))
    masked = (scores == float("-inf")).all(dim=-1, keepdim=True)
    return torch.softmax(scores.masked_fill(masked, 0.0), dim=-1).masked_fill(masked, 0.0)


WRITTEN_OUT[F.multi_head_attention_forward] = multi_head_attention
WRITTEN_OUT[F.scaled_dot_product_attention] = scaled_dot_product
