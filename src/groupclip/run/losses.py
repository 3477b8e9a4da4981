"""Turn a micro-batch, as its sampling and unit give it, into one loss for each unit of privacy."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ..sampling.readers import Padded
from ..sampling.users import user_losses
from .build import Trainer


def unit_losses(trainer: Trainer, piece: Any) -> Tensor:
    """Return ``[B]`` cross-entropies of the samples of ``piece``; each user's mean for users; 0 for what fills a batch up."""
    samples, weights = (piece.samples, piece.weights) if isinstance(piece, Padded) else (piece, None)
    inputs, labels = (tensor.to(trainer.device) for tensor in samples)
    logits = trainer.engine.model(inputs)
    if trainer.mechanism.unit == "user":  # [U, k, ..]
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        return user_losses(losses.unflatten(0, labels.shape))
    losses = F.cross_entropy(logits, labels, reduction="none")
    return losses if weights is None else losses * weights.to(losses)
