"""What a scaled experiment is: cells, each with its settings and with what builds its model and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..settings import TrainSettings
from ..workload import Workload

MADE = "made"  # folder beside the results, for what is made once


@dataclass(frozen=True, kw_only=True, eq=False)
class ScaledCell:
    """One run.

    cell: what tells it from its neighbours: model, data, epsilon, clipping, clip, seed.
    settings: how it is trained.
    build: makes the model (fresh, with its public weights) and the data; called when the cell's turn comes.
    """

    cell: Mapping[str, Any]
    settings: TrainSettings
    build: Callable[[], Workload]


@dataclass(frozen=True, kw_only=True, eq=False)
class ScaledExperiment:
    """Cells that make one table or plot.

    name: of the experiment, ``vision-small``: results are filed under it, docs/reproduction/NAME.json keeps them.
    title: what it shows, one line. twin: the table or figure of the paper that it is a twin of.
    cells: from (folder of data, folder for what is made once, such as pretrained weights) to the cells, in the order in
        which they are worth running.
    smoke: the same kind of cells, so few and short that tests can run them without any data.
    """

    name: str
    title: str
    twin: str
    cells: Callable[[Path, Path], Sequence[ScaledCell]]
    smoke: Callable[[Path], Sequence[ScaledCell]]
