"""A step to be planned or measured: a model, a batch, and one loss per sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ..nested import replaced, tensors_in

#: ``loss(model, batch)`` gives one loss per sample, ``[B]``.
Loss = Callable[[nn.Module, Any], Tensor]


def number_of_samples(batch: Any) -> int:
    """B: the length of the first tensor of the batch.

    Raises:
        ValueError: no tensor with a dimension, or no sample.
    """
    for tensor in tensors_in(batch):
        if tensor.dim() > 0:
            if tensor.shape[0] == 0:
                raise ValueError("the example batch holds no sample; give one like those of training")
            return tensor.shape[0]
    raise ValueError("the example batch holds no tensor: give the model's inputs, samples along dimension 0")


def batch_bytes(batch: Any) -> int:
    """Return bytes of the tensors of a batch."""
    return sum(t.numel() * t.element_size() for t in tensors_in(batch))


def default_loss(model: nn.Module, batch: Any) -> Tensor:
    """Return cross-entropy over the last dimension of the model's (first) output, summed over the other dimensions.

    A tensor is the model's input, a mapping its keyword arguments, a pair ``(inputs, labels)`` of one of these and the
    labels; without labels, class 0 is everyone's. Another loss, another need of memory: give your own.
    """
    labels = None
    if isinstance(batch, (tuple, list)):
        if len(batch) != 2:
            raise ValueError(
                f"the example batch has {len(batch)} parts, which could mean anything: give a tensor, a mapping of keyword "
                "arguments, or a pair (inputs, labels); or give loss=, a function (model, batch) -> [B]"
            )
        batch, labels = batch
    output = model(**batch) if isinstance(batch, Mapping) else model(batch)
    logits = getattr(output, "logits", output)
    logits = next(t for t in tensors_in(logits) if t.is_floating_point())
    if logits.dim() < 2:
        return logits.square()
    samples = logits.shape[0]
    if labels is None:
        labels = logits.new_zeros(logits.shape[:-1]).long()
    if labels.is_floating_point():
        return (logits - labels).square().flatten(1).sum(dim=1)
    if logits.dim() == 2:
        return F.cross_entropy(logits, labels, reduction="none")
    losses = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    return losses.view(samples, -1).sum(dim=1)


def resized(batch: Any, samples: int, make: Callable[[Tensor, tuple[int, int]], Tensor]) -> Any:
    """Return the batch with ``samples`` samples; ``make(tensor, (B, samples))`` resizes a tensor."""
    now = number_of_samples(batch)
    return replaced(batch, lambda v: make(v, (now, samples)) if isinstance(v, Tensor) else v)
