"""One loss a sample, from whatever a Trainer computes for a batch.

The Trainer's own ``compute_loss`` runs on every sample alone, as a batch of one (:meth:`groupclip.Engine.per_sample`). So its mean
over the batch's tokens is the mean over one sample's tokens, label smoothing and ``compute_loss_func`` included.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from transformers import Trainer

from ...engine.engine import Engine
from ...errors import PrivacyViolation

Loss = Callable[[nn.Module, dict[str, Any]], Any]


def loss_of(trainer: Trainer) -> Loss:
    """Return the loss that the trainer computes for a batch.

    That of trl's trainers also logs the share of right tokens and the entropy of the training data, without noise. So the loss
    is transformers' there, which is the same number.
    """
    kind = next(c for c in type(trainer).__mro__ if "compute_loss" in vars(c))
    method = Trainer.compute_loss if kind.__module__.partition(".")[0] == "trl" else kind.compute_loss
    return functools.partial(method, trainer)


def per_sample_losses(engine: Engine, loss: Loss, model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Return ``[B]`` losses of the samples of a micro-batch, each computed alone.

    Args:
        inputs: what the collator made: name -> tensor ``[B, ..]``.

    Raises:
        PrivacyViolation: ``loss`` doesn't give one number for a batch of one.
    """

    def alone(sample: dict[str, Any]) -> Tensor:
        one = loss(model, dict(sample))
        if not isinstance(one, Tensor) or one.numel() != 1:
            told = tuple(one.shape) if isinstance(one, Tensor) else type(one).__name__
            raise PrivacyViolation(
                f"compute_loss gave {told} for a batch of one sample: it must give one number, such as the mean over the sample's "
                "tokens"
            )
        return one.reshape(())

    return engine.per_sample(alone, dict(inputs.items()))
