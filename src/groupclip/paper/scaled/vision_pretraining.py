"""Public pretraining of small vision transformers: plain training on a public set, kept as safetensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from ...models.vit import VisionTransformer, ViTShape
from .vision_data import SIDE, Images, distorted, scaled

PATCH = 8  # 16 patches and the class token


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """AdamW, the learning rate up in a line and down in half a cosine; images mirrored and shifted."""

    epochs: int = 24
    batch: int = 125
    lr: float = 2e-3
    weight_decay: float = 0.05
    warmup: int = 200  # steps
    largest_norm: float = 1.0  # of a batch's gradient
    seed: int = 0


def small_vit(shape: ViTShape, classes: int) -> VisionTransformer:
    """Return a vision transformer for 32 x 32 colour images in 16 patches."""
    return VisionTransformer(shape, channels=3, image_size=(SIDE, SIDE), num_classes=classes, patch_size=PATCH)


def pretrain(shape: ViTShape, public: Images, recipe: Recipe) -> VisionTransformer:
    """Train from random weights on public images."""
    torch.manual_seed(recipe.seed)
    model = small_vit(shape, public.classes)
    generator = torch.Generator().manual_seed(recipe.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
    batch = min(recipe.batch, len(public))
    an_epoch = len(public) // batch
    steps = recipe.epochs * an_epoch
    warmup = min(recipe.warmup, max(1, steps // 10))
    for epoch in range(recipe.epochs):
        order = torch.randperm(len(public), generator=generator)
        for place in range(an_epoch):
            step = epoch * an_epoch + place
            rows = order[place * batch : (place + 1) * batch]
            rate = recipe.lr * min((step + 1) / warmup, (1 + math.cos(math.pi * step / steps)) / 2)
            for group in optimizer.param_groups:
                group["lr"] = rate
            images = distorted(scaled(public.pixels[rows]), generator)
            F.cross_entropy(model(images), public.labels[rows]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.largest_norm)
            optimizer.step()
            optimizer.zero_grad()
    return model


def pretrained(shape: ViTShape, public: Images, recipe: Recipe, file: Path) -> VisionTransformer:
    """Return the pretrained model, from ``file`` if it has been trained before; else it's trained, and the file is written."""
    from safetensors.torch import load_file, save_file

    if file.exists():
        model = small_vit(shape, public.classes)
        model.load_state_dict(load_file(file))
        return model
    model = pretrain(shape, public, recipe)
    file.parent.mkdir(parents=True, exist_ok=True)
    partly = file.with_suffix(".part")
    save_file(model.state_dict(), partly)
    partly.replace(file)
    return model


def accuracy(model: torch.nn.Module, images: Images, *, together: int = 500) -> dict[str, float]:
    """Percent right, and mean cross-entropy."""
    right, total = 0, 0.0
    model.eval()
    with torch.no_grad():
        for first in range(0, len(images), together):
            x, y = images.batch(range(first, min(first + together, len(images))))
            logits = model(x)
            right += int((logits.argmax(1) == y).sum())
            total += float(F.cross_entropy(logits, y, reduction="sum"))
    return {"accuracy": 100 * right / len(images), "loss": total / len(images)}
