"""Which cells of the scaled experiments are meant."""

from __future__ import annotations

from pathlib import Path

from ..runner import Job, scaled_jobs
from ..selection import Wanted, matches, none_of
from .every import experiments
from .experiment import MADE, ScaledCell


def small_jobs(twin: str, wanted: Wanted, data: Path | None, out: Path) -> list[Job]:
    """Return the cells of every scaled experiment that is a twin of the table or figure ``twin``.

    Args:
        data: folder of small real data. out: folder of results; what is made once (pretrained weights) lies in out/made.

    Raises:
        ValueError: no such experiment, none of its cells wanted, or no data.
    """
    known = experiments()
    mine = [experiment for experiment in known if experiment.twin == twin]
    if not mine:
        twins = ", ".join(sorted({experiment.twin for experiment in known})) or "none yet"
        raise ValueError(f"{twin} has no small twin; those with one: {twins}")
    if data is None:
        raise ValueError(
            "--scale small needs --data-folder, the folder of the small data sets (docs/reproduction-data.md)"
        )
    jobs: list[Job] = []
    every: list[ScaledCell] = []
    for experiment in mine:
        cells = experiment.cells(data, out / MADE)
        every += cells
        jobs += scaled_jobs(experiment.name, [cell for cell in cells if matches(cell.cell, wanted)])
    if not jobs:
        raise ValueError(none_of(", ".join(e.name for e in mine), [cell.cell for cell in every], wanted))
    return jobs
