"""The pre-norm transformer block that the image and text models share.

Shapes: B batch, T tokens, D width, H heads. Parameter names are timm's.
"""

import torch.nn.functional as F
from torch import Tensor, nn

LAYER_NORM_EPS = 1e-6


class Attention(nn.Module):
    """Multi-head self-attention with one projection for queries, keys and values."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"width {dim} can't be shared equally by {heads} heads")
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x [B, T, D]; mask [B, 1, 1, T], True where a token may be looked at."""
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # [B, T, 3, H, D/H]
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # [B, H, T, D/H] each
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """Two linear layers with a GELU between them, for every token alone."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, dim: int, heads: int, mlp_ratio: int = 4) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=LAYER_NORM_EPS)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=LAYER_NORM_EPS)
        self.mlp = Mlp(dim, mlp_ratio * dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


def init_blocks(blocks: nn.ModuleList) -> None:
    """Xavier weights and zero biases for every linear layer, as in the code of Dosovitskiy et al. 2021.

    A fixed deviation of 0.02 suits a width of 768; narrow models start almost blind with it, and a private
    run has too few steps to recover.
    """
    for layer in blocks.modules():
        if isinstance(layer, Attention):
            for projection in layer.qkv.weight.chunk(3):  # three square matrices, not one tall one
                nn.init.xavier_uniform_(projection)
            nn.init.zeros_(layer.qkv.bias)
            nn.init.xavier_uniform_(layer.proj.weight)
            nn.init.zeros_(layer.proj.bias)
        elif isinstance(layer, Mlp):
            for linear in (layer.fc1, layer.fc2):
                nn.init.xavier_uniform_(linear.weight)
                nn.init.zeros_(linear.bias)
