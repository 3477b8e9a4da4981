"""Runs cells one after the other: those with a result are skipped, and Ctrl-C loses no finished one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from . import results
from .cells import EXPERIMENT, Cell
from .dryrun import Build
from .results import Result
from .scaled.experiment import ScaledCell
from .settings import TrainSettings
from .source import Source
from .trainer import train_cell
from .workload import Workload


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """One run. ``prepare`` builds what is trained, when the job's turn comes, and says how."""

    experiment: str
    cell: Mapping[str, Any]
    title: str
    prepare: Callable[[], tuple[Workload, TrainSettings]]


class Stopped(Exception):
    """Somebody asked to stop; what is finished is kept."""


class Watcher(Protocol):
    """Told what happens. Its ``step`` may raise :class:`Stopped`."""

    def skipped(self, job: Job, result: Result) -> None: ...

    def begin(self, job: Job, number: int, jobs: int) -> None: ...

    def step(self, step: int, steps: int) -> None: ...

    def done(self, job: Job, result: Result) -> None: ...


def run_jobs(
    jobs: Sequence[Job], folder: Path, watcher: Watcher, *, device: torch.device | str = "cpu"
) -> list[Result]:
    """Return results of all jobs, in their order; each is on the disk before the next begins.

    Raises:
        Stopped: the watcher asked for it. Call again with the same folder to go on.
        GroupClipError: a source that isn't here, a cell that can't be trained: earlier cells are kept.
    """
    found: list[Result] = []
    for number, job in enumerate(jobs, start=1):
        done = results.find(folder, job.experiment, job.cell)
        if done is not None:
            watcher.skipped(job, done)
        else:
            watcher.begin(job, number, len(jobs))
            workload, settings = job.prepare()
            done = train_cell(
                workload, experiment=job.experiment, cell=job.cell, settings=settings, folder=folder, device=device,
                tell=watcher.step,
            )  # fmt: skip
            watcher.done(job, done)
        found.append(done)
    return found


def paper_jobs(cells: Sequence[Cell], build: Build, source: Source, *, microbatch: int | None = None) -> list[Job]:
    """Return full-scale cells, each once. The new head of a pretrained model is drawn from the cell's seed, which is public.

    Args:
        microbatch: instead of the settings' own; changes memory and time alone.
    """

    def preparing(cell: Cell) -> Callable[[], tuple[Workload, TrainSettings]]:
        def prepare() -> tuple[Workload, TrainSettings]:
            torch.manual_seed(cell.seed)
            workload = build(cell.data, cell.model, source)
            settings = cell.settings(len(workload.train))  # type: ignore[arg-type]
            return workload, settings if microbatch is None else replace(settings, microbatch=microbatch)

        return prepare

    unique = dict.fromkeys(cells)
    return [Job(experiment=EXPERIMENT, cell=c.key(), title=str(c), prepare=preparing(c)) for c in unique]


def scaled_jobs(name: str, cells: Sequence[ScaledCell]) -> list[Job]:
    """Return cells of a scaled experiment."""

    def preparing(cell: ScaledCell) -> Callable[[], tuple[Workload, TrainSettings]]:
        return lambda: (cell.build(), cell.settings)

    return [
        Job(experiment=name, cell=c.cell, title=", ".join(f"{k} {v}" for k, v in c.cell.items()), prepare=preparing(c))
        for c in cells
    ]
