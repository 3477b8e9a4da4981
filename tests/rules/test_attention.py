"""Torch's attention and decoders, over their options: exact, and the same output."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from check_engine import inexact
from check_rules import Calls, randn, slow_operations


class Attends(nn.Module):
    """Torch's attention over ``x [B, 5, 4]`` and ``memory [B, 3, ..]``, its weights in the output if asked for."""

    def __init__(
        self, *, cross: bool = False, weights: bool = True, average: bool = True, mask: str = "", **options: Any
    ) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, **options)
        self.first, self.cross, self.weights, self.average, self.mask = (
            options.get("batch_first", False), cross, weights, average, mask,
        )  # fmt: skip

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        keys = memory if self.cross else x
        if not self.first:
            x, keys = x.transpose(0, 1), keys.transpose(0, 1)
        length, size = (x.shape[1], x.shape[0]) if self.first else x.shape[:2]
        positions = keys.shape[1 if self.first else 0]
        masks: dict[str, Any] = {}
        if self.mask == "causal":
            masks = {
                "attn_mask": nn.Transformer.generate_square_subsequent_mask(length, dtype=x.dtype),
                "is_causal": True,
            }
        elif self.mask == "bool":
            masks = {"attn_mask": torch.ones(length, positions, dtype=torch.bool).triu(1)}
        elif self.mask == "per head":
            masks = {"attn_mask": torch.arange(size * 2 * length * positions).view(size * 2, length, positions) / 50.0}
            masks["attn_mask"] = masks["attn_mask"].fmod(1).to(x.dtype)
        elif self.mask == "padding":
            masks = {"key_padding_mask": (torch.arange(positions) == 2).expand(size, -1)}
        out, weights = self.attention(
            x, keys, keys, need_weights=self.weights, average_attn_weights=self.average, **masks
        )
        out = out if self.first else out.transpose(0, 1)
        return out if weights is None else torch.cat([out.flatten(1), weights.flatten(1)], 1)


ATTENTION: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "batch first": {"batch_first": True},
    "no weights": {"weights": False},
    "weights of each head": {"average": False},
    "no bias": {"bias": False},
    "bias for keys and values": {"add_bias_kv": True},
    "zero attention": {"add_zero_attn": True},
    "both, no weights": {"add_bias_kv": True, "add_zero_attn": True, "weights": False, "batch_first": True},
    "cross": {"cross": True},
    "cross, other widths": {"cross": True, "kdim": 4, "vdim": 4},
    "cross, other widths, no bias": {"cross": True, "kdim": 4, "vdim": 4, "bias": False, "batch_first": True},
    "causal": {"mask": "causal"},
    "causal without weights": {"mask": "causal", "weights": False},
    "boolean mask": {"mask": "bool", "batch_first": True},
    "padding mask": {"mask": "padding"},
    "padding mask and bias": {"mask": "padding", "add_bias_kv": True, "add_zero_attn": True},
}


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("options", ATTENTION)
def test_multi_head_attention(options: str, size: int) -> None:
    """B = 5 and 3 are as long as the sequences."""
    x, memory = randn(size, 5, 4), randn(size, 3, 4).cos()
    assert inexact(Attends(**ATTENTION[options]), (x, memory), styles=("param-wise",)) == []


class DecoderLayer(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(4, 2, 6, dropout=0.0, batch_first=batch_first, activation="gelu")
        self.first = batch_first

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        if self.first:
            return self.layer(x, memory)
        return self.layer(x.transpose(0, 1), memory.transpose(0, 1)).transpose(0, 1)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("size", [2, 5])
def test_transformer_decoder(batch_first: bool, size: int) -> None:
    assert (
        inexact(DecoderLayer(batch_first), (randn(size, 5, 4), randn(size, 3, 4).cos()), styles=("param-wise",)) == []
    )


def learnt_bias(dropout: float = 0.0, masked: bool = False, padded: bool = False, **options: Any) -> nn.Module:
    """x [B, 5, 4]: two heads with a bias of each pair of positions; some rows masked as a whole, some by the batch."""

    def run(x: Tensor, bias: Tensor) -> Tensor:
        if masked:
            bias = bias.masked_fill(torch.arange(5)[:, None] == 2, float("-inf"))
        if padded:
            bias = bias + torch.where(x[:, None, None, :, 0] > 1.0, -1e4, 0.0).to(x.dtype)
        heads = x.unflatten(-1, (2, 2)).transpose(1, 2)
        with torch.random.fork_rng():
            torch.manual_seed(3)
            return F.scaled_dot_product_attention(heads, heads.cos(), heads.sin(), bias, dropout, **options).transpose(
                1, 2
            )

    return Calls(run, bias=randn(1, 2, 5, 5))


@pytest.mark.parametrize("options", [{}, {"masked": True}, {"padded": True}, {"scale": 0.3}, {"dropout": 0.4}], ids=str)
def test_a_learnt_bias_in_the_fused_attention(options: dict[str, Any]) -> None:
    """With dropout one sample, so that the oracle draws the same masks."""
    for size in (1,) if "dropout" in options else (1, 3, 5):
        assert inexact(learnt_bias(**options), (randn(size, 5, 4),)) == [], size
    assert slow_operations(learnt_bias(**options), (randn(3, 5, 4),)) == set()


def test_a_table_repeated_for_every_sample() -> None:
    """DeBERTa's relative positions: ``[heads, positions, d]``, one copy after another, in a product of stacks."""

    def run(x: Tensor, table: Tensor) -> Tensor:
        heads = x.unflatten(-1, (2, 2)).transpose(1, 2).flatten(0, 1)  # [B * 2, 5, 2]
        return torch.bmm(heads, table.repeat(len(x), 1, 1).mT).unflatten(0, (-1, 2))

    for size in (1, 2, 3, 5):
        assert inexact(Calls(run, table=randn(2, 7, 2)), (randn(size, 5, 4),)) == [], size
    assert slow_operations(Calls(run, table=randn(2, 7, 2)), (randn(3, 5, 4),)) == set()


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("shape", [(5, 5), (2, 5, 5)])
def test_a_mask_that_is_learnt(shape: tuple[int, ...], weights: bool) -> None:
    class Learns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.mask = nn.MultiheadAttention(4, 2, batch_first=True), nn.Parameter(randn(*shape))

        def forward(self, x: Tensor) -> Tensor:
            mask = self.mask if self.mask.dim() == 2 else self.mask.repeat(len(x), 1, 1)
            return self.attention(x, x, x, attn_mask=mask, need_weights=weights)[0]

    assert inexact(Learns(), (randn(6, 5, 4),)) == []
