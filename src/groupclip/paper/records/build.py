"""Makes, of a row of the table, runs that can be stopped and gone on with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..runner import Job
from ..settings import TrainSettings
from ..workload import Workload
from .features import Features, features
from .rows import Row
from .scratch import from_scratch

NAME = "records"  # results are filed under it
MADE = "made"  # folder beside the results, of features


def jobs(rows: Iterable[Row], seeds: Sequence[int], data: Path, out: Path, *, private: bool = True) -> list[Job]:
    """Return the runs of rows, all rows of a seed before the next seed.

    Args:
        seeds: number the runs. Sampling and noise come from the operating system. A linear model begins at zero, a network with
            weights of the seed.
        data: folder of the files. out: folder of results; features lie in out/made.
        private: False: the same without clipping and noise, to see what privacy costs.
    """
    return [_job(row, seed, data, out / MADE, private) for seed in seeds for row in rows]


def _job(row: Row, seed: int, data: Path, kept: Path, private: bool) -> Job:
    cell = {"row": row.name, "epsilon": row.epsilon if private else None, "seed": seed}
    settings = replace(row.settings, seed=seed)
    if not private:
        settings = replace(settings, epsilon=None)
    title = f"{row.data}, {row.method}, epsilon {'none' if not private else f'{row.epsilon:g}'}, seed {seed}"
    return Job(experiment=NAME, cell=cell, title=title, prepare=_preparing(row, data, kept, settings))


def _preparing(row: Row, data: Path, kept: Path, settings: TrainSettings) -> Callable[[], tuple[Workload, TrainSettings]]:
    if not row.features:
        return lambda: (from_scratch(row, data / row.file, settings.seed, settings.views), settings)
    return lambda: (workload(row, data, kept, settings.seed), settings)


def workload(row: Row, data: Path, kept: Path, seed: int) -> Workload:
    """Make the features of a row, and its network with the weights of this seed; or a linear model, of zeros."""
    train, test = features(row.features, data / row.file, kept, row.first)
    inputs = train.values.shape[1]
    return Workload(
        name=row.name,
        model=linear(inputs, train.classes) if row.network is None else row.network.build(train.classes, seed),
        train=train,  # type: ignore[arg-type]  # its items are row numbers
        collate=train.batch,
        losses=losses,
        evaluate=lambda model: accuracy(model, test),
        description=_described(row, train, test),
    )


def linear(inputs: int, classes: int) -> nn.Linear:
    """Return a linear model of zeros: it knows nothing of any class."""
    model = nn.Linear(inputs, classes)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return cross-entropy of each record, ``[B]``."""
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels, reduction="none")


@torch.no_grad()
def accuracy(model: nn.Module, test: Features) -> dict[str, float]:
    """Return the share of held-out records that are right, in percent."""
    device, right = next(model.parameters()).device, 0
    for first in range(0, len(test), 1000):
        inputs, labels = test.batch(range(first, min(first + 1000, len(test))))
        right += int((model(inputs.to(device)).argmax(1).cpu() == labels).sum())
    return {"accuracy": 100 * right / len(test)}


def _described(row: Row, train: Features, test: Features) -> dict[str, Any]:
    return {
        "data": row.data, "records": len(train), "held_out": len(test), "features": row.features,
        "inputs": int(train.values.shape[1]), "classes": train.classes, "notes": list(row.notes),
    }  # fmt: skip
