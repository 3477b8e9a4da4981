"""What a row of a table trains on: a model, private records, a loss per sample and a score."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset

Batch = Any  # what ``collate`` makes of a list of records: tensors, or a tuple or mapping of tensors


@dataclass(frozen=True, kw_only=True, eq=False)
class Workload:
    """A model and its data, ready to be trained with or without privacy.

    name: dataset and model, for messages.
    model: with its public pretrained weights, if it has any. Training changes it in place.
    train: the private records; ``len(train)`` is public. test records are inside ``evaluate``.
    collate: list of records -> batch on the CPU; also of an empty list's stand-in, as :func:`groupclip.poisson_batches` needs.
    losses: (model, batch) -> one loss per sample, ``[B]``.
    evaluate: model -> scores on held-out records, in the units of the paper's tables.
    description: JSON-able facts for reports: where data and weights came from, what is a stand-in.
    predicted_peak: most bytes of a step, if it was planned; reported where nothing measures it.
    """

    name: str
    model: nn.Module
    train: Dataset[Any]
    collate: Callable[[list[Any]], Batch]
    losses: Callable[[nn.Module, Batch], Tensor]
    evaluate: Callable[[nn.Module], dict[str, float]]
    description: Mapping[str, object] = field(default_factory=dict)
    predicted_peak: int | None = None
