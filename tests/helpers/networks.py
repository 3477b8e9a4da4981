"""The networks that the catalogue calls core: MLP, CNN, ViT, GPT, GPT with a tied head. All tiny."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6, bias=False), nn.Tanh(), nn.Linear(6, 3))


class CNN(nn.Module):
    """GroupNorm; grouped, dilated, strided convolutions; "same" padding as text; every padding mode.

    No GroupNorm has one channel a group after a bias: the gradient of that bias would be rounding errors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding="same"),
            nn.GroupNorm(2, 4),
            nn.Tanh(),
            nn.Conv2d(4, 4, 3, padding=1, groups=2, padding_mode="reflect"),
            nn.GroupNorm(2, 4),
            nn.Conv2d(4, 4, (2, 3), padding="same", dilation=(1, 2), padding_mode="circular"),  # uneven
            nn.GELU(),
            nn.Conv2d(4, 6, 3, stride=2, padding=(1, 2), padding_mode="replicate", bias=False),
            nn.GroupNorm(3, 6),
            nn.Conv2d(6, 6, 3, stride=(1, 2), padding=1, groups=6),  # depthwise
        )
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Attention(nn.Module):
    """Fused q, k, v; torch's scaled_dot_product_attention."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, width))


class LayerScale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class RMSNorm(nn.Module):
    """Written out, as most language models do, with the weight around one (``1 + weight``) on request."""

    def __init__(self, width: int, unit_offset: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width) if unit_offset else torch.ones(width))
        self.unit_offset = unit_offset

    def forward(self, x: Tensor) -> Tensor:
        scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
        return scaled * (1 + self.weight) if self.unit_offset else self.weight * scaled


class ViTBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width, 2, causal=False)
        self.scale1 = LayerScale(width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.scale2 = LayerScale(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.scale1(self.attn(self.norm1(x)))
        return x + self.scale2(self.mlp(self.norm2(x)))


class ViT(nn.Module):
    """4 patches of 4 x 4 pixels and a class token; ``depth`` pre-norm blocks."""

    def __init__(self, depth: int = 3, width: int = 8) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, width))
        self.patch_embed = nn.Conv2d(3, width, 4, stride=4)
        self.blocks = nn.ModuleList(ViTBlock(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class GPTBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = RMSNorm(width)
        self.attn = Attention(width, 2, causal=True)
        self.norm2 = RMSNorm(width, unit_offset=True)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Next-token logits [B, T, VOCABULARY]. Positions come from a 1-D arange, without a batch dimension."""

    VOCABULARY = 11

    def __init__(self, depth: int = 2, width: int = 8, tied: bool = False) -> None:
        super().__init__()
        self.wte = nn.Embedding(self.VOCABULARY, width)
        self.wpe = nn.Embedding(8, width)
        self.h = nn.ModuleList(GPTBlock(width) for _ in range(depth))
        self.norm = RMSNorm(width)
        self.lm_head = nn.Linear(width, self.VOCABULARY, bias=False)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.norm(x))
