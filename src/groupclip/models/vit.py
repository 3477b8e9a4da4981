"""Vision transformers (Dosovitskiy et al. 2021) in the shapes of the paper, for any image size."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .transformer import LAYER_NORM_EPS, Block, init_blocks

LARGEST_PATCH = 16
MOST_PATCHES = 1024


@dataclass(frozen=True, kw_only=True)
class ViTShape:
    """Width, number of blocks and number of heads of one member of the family."""

    dim: int
    depth: int
    heads: int


VIT_SHAPES = {
    "vit-micro": ViTShape(dim=128, depth=2, heads=4),
    "vit-tiny": ViTShape(dim=192, depth=12, heads=3),
    "vit-small": ViTShape(dim=384, depth=12, heads=6),
    "vit-base": ViTShape(dim=768, depth=12, heads=12),
    "vit-large": ViTShape(dim=1024, depth=24, heads=16),
}


def default_patch_size(height: int, width: int) -> int:
    """Return the largest patch side, at most 16, that divides both sides and leaves enough patches on the shorter.

    Enough is 7, or a quarter of the side for small images: 224 -> 16 (14x14 patches), 64 -> 8 (8x8),
    32 -> 4 (8x8), 28 -> 4 (7x7), 8 -> 4 (2x2).
    """
    short = min(height, width)
    enough = max(1, min(7, short // 4))
    divisors = [p for p in range(1, LARGEST_PATCH + 1) if height % p == 0 and width % p == 0]
    return max(p for p in divisors if p == 1 or short // p >= enough)


class PatchEmbed(nn.Module):
    """Cut an image into square patches and map each linearly to the width of the model."""

    def __init__(self, channels: int, patch_size: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)  # [B, patches, D]


class VisionTransformer(nn.Module):
    """Images ``[B, C, H, W]`` to logits ``[B, num_classes]``, read off the class token.

    image_size: (H, W) that the model works on; images of another size are resized, bilinearly, first.
    patch_size: side of a patch; None takes :func:`default_patch_size`.

    Raises:
        ValueError: the patch doesn't divide the image, or there would be more than 1,024 patches.
    """

    def __init__(
        self,
        shape: ViTShape,
        *,
        channels: int,
        image_size: tuple[int, int],
        num_classes: int,
        patch_size: int | None = None,
    ) -> None:
        super().__init__()
        height, width = image_size
        patch = default_patch_size(height, width) if patch_size is None else patch_size
        if patch < 1 or height % patch or width % patch:
            raise ValueError(f"patch_size={patch} doesn't divide {height}x{width} pixels; choose a divisor")
        patches = (height // patch) * (width // patch)
        if patches > MOST_PATCHES:
            raise ValueError(
                f"{height}x{width} pixels in patches of {patch} make {patches} tokens, more than {MOST_PATCHES}; "
                "set image_size to a multiple of 16, or a larger patch_size"
            )
        self.image_size = image_size
        self.patch_embed = PatchEmbed(channels, patch, shape.dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, shape.dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + patches, shape.dim))
        self.blocks = nn.ModuleList(Block(shape.dim, shape.heads) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.dim, eps=LAYER_NORM_EPS)
        self.head = nn.Linear(shape.dim, num_classes)
        init_blocks(self.blocks)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-2:] != self.image_size:
            x = F.interpolate(x, self.image_size, mode="bilinear", antialias=True)
        x = self.patch_embed(x)  # [B, patches, D]
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1) + self.pos_embed  # [B, T, D]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])
