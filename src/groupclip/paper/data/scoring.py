"""Running a model over held-out records, without gradients and in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Tensors = tuple[Tensor, ...]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[torch.device]:
    """Evaluation mode without gradients; gives the model's device, and its mode back at the end."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield next(model.parameters()).device
    finally:
        model.train(training)


def accuracy(
    model: nn.Module,
    records: Sequence[Any],
    collate: Callable[[list[Any]], Tensors],
    logits: Callable[[nn.Module, Tensors], Tensor],
    size: int = 64,
) -> float:
    """Percentage of records whose largest logit is at their label; a batch's last tensor holds the labels."""
    right = 0
    with evaluating(model) as device:
        for start in range(0, len(records), size):
            batch = collate([records[i] for i in range(start, min(start + size, len(records)))])
            on_device = tuple(t.to(device) for t in batch)
            right += int((logits(model, on_device).argmax(-1) == on_device[-1]).sum())
    return 100 * right / len(records)
