"""How good the model is on records that the guarantee doesn't cover."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from ..tasks import Task
from ..tasks.spec import Records

_BATCH = 256


@dataclass(frozen=True)
class Evaluation:
    """Holds what was measured on held-out and public records.

    test_accuracy: share of held-out records that were right. majority_share: what naming their commonest class for all of
    them has. public_loss: on public records, or None.
    """

    test_accuracy: float
    majority_share: float
    public_loss: float | None


def evaluate(model: nn.Module, task: Task, device: torch.device) -> Evaluation:
    """Evaluate a model on held-out and public records, never on ``task.train``."""
    accuracy, majority, loss = _measure(model, task.test, device)
    if task.public is None:
        return Evaluation(accuracy, majority, None)
    if task.public is not task.test:
        *_, loss = _measure(model, task.public, device)
    return Evaluation(accuracy, majority, loss)


def _measure(model: nn.Module, records: Records, device: torch.device) -> tuple[float, float, float]:
    """Return accuracy, share of the commonest class, and mean cross-entropy."""
    right, loss, count, of_class = 0, 0.0, 0, Counter[int]()
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for inputs, labels in DataLoader(records, batch_size=_BATCH):
                logits = model(inputs.to(device))
                labels = labels.to(device)
                right += int((logits.argmax(1) == labels).sum())
                loss += float(F.cross_entropy(logits, labels, reduction="sum"))
                count += len(labels)
                of_class.update(labels.tolist())
    finally:
        model.train(training)
    return right / count, max(of_class.values()) / count, loss / count
