"""Turn a micro-batch, as its sampling and unit give it, into one loss for each unit of privacy."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ..sampling.readers import Padded
from ..sampling.users import user_losses
from ..tasks.augment import augmented
from .build import Trainer


def views_of(images: Tensor, views: int, augment: str) -> Tensor:
    """Return ``[B, K, ..]``, K random views of each image: shifted by up to an eighth of its side, and mirrored if asked for."""
    return augmented(images, views, crop=max(1, min(images.shape[2:]) // 8), flip=augment == "crop-flip")


def unit_losses(trainer: Trainer, piece: Any) -> Tensor:
    """Return ``[B]`` cross-entropies of the samples of ``piece``; the mean over a user's or over views; 0 for what fills it up."""
    samples, weights = (piece.samples, piece.weights) if isinstance(piece, Padded) else (piece, None)
    inputs, labels = (tensor.to(trainer.device) for tensor in samples)
    if trainer.augment != "none":
        inputs = views_of(inputs, trainer.views, trainer.augment)
        inputs = inputs if trainer.views > 1 else inputs.flatten(0, 1)
    logits = trainer.engine.model(inputs)
    if trainer.mechanism.unit == "user":  # [U, k, ..]
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        return user_losses(losses.unflatten(0, labels.shape))
    if trainer.views > 1:
        losses = F.cross_entropy(logits.flatten(0, 1), labels.repeat_interleave(trainer.views), reduction="none")
        losses = losses.unflatten(0, (len(labels), trainer.views)).mean(1)
    else:
        losses = F.cross_entropy(logits, labels, reduction="none")
    return losses if weights is None else losses * weights.to(losses)
