"""A small transformer encoder for token ids."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .transformer import LAYER_NORM_EPS, Block, init_blocks

DIM, DEPTH, HEADS = 128, 4, 4


class TextEncoder(nn.Module):
    """Token ids ``[B, T]``, 0 for padding, to logits ``[B, num_classes]``, read off a class token.

    The class token is never masked, so a text without a word still has something to look at.
    """

    def __init__(self, *, vocabulary: int, length: int, num_classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, DIM, padding_idx=0)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, DIM))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + length, DIM))
        self.blocks = nn.ModuleList(Block(DIM, HEADS) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(DIM, eps=LAYER_NORM_EPS)
        self.head = nn.Linear(DIM, num_classes)
        init_blocks(self.blocks)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        for parameter in (self.embed.weight, self.pos_embed):
            nn.init.trunc_normal_(parameter, std=0.02)
        with torch.no_grad():
            self.embed.weight[0] = 0

    def forward(self, ids: Tensor) -> Tensor:
        mask = F.pad(ids != 0, (1, 0), value=True)[:, None, None]  # [B, 1, 1, 1 + T]
        x = torch.cat([self.cls_token.expand(ids.shape[0], -1, -1), self.embed(ids)], dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x)[:, 0])
