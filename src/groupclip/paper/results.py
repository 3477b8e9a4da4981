"""One trained cell of a table: what was asked, what was spent, what came out; a JSON file each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import GroupClipError
from ..run.files import write_atomically


class ResultError(GroupClipError):
    """A file of results that can't be read, or that is of another cell than its name says."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The outcome of one run.

    experiment: the table or figure, and the scale: ``vision`` or ``vision-small``.
    cell: what tells this run from its neighbours: model, data, epsilon, clipping, clip, seed.
    settings: everything else that was chosen: epochs, batch_size, lr, weight_decay, ...
    privacy: epsilon, delta, noise_multiplier, sample_rate, steps, steps_lost (charged, but their updates were lost in crashes),
        adjacency, accountant; empty for non-private runs.
    groups: M, or 0 for non-private runs.
    metrics: name -> value on held-out data, in the units of the paper's tables (accuracy in percent).
    peak_bytes: most live bytes of one step as measured or predicted; None where it wasn't asked for.
    environment: versions and hardware, from :func:`groupclip.run.environment.environment`.
    """

    experiment: str
    cell: Mapping[str, Any]
    settings: Mapping[str, Any]
    privacy: Mapping[str, Any]
    groups: int
    metrics: Mapping[str, float]
    seconds: float
    peak_bytes: int | None
    environment: Mapping[str, str]


def cell_file(folder: Path, experiment: str, cell: Mapping[str, Any]) -> Path:
    """Return where the result of a cell lies: names that a person can read, and a hash that no two cells share."""
    text = json.dumps(dict(cell), sort_keys=True)
    words = "-".join(str(cell[k]) for k in sorted(cell))
    readable = "".join(c if c.isalnum() or c in "-._" else "_" for c in words)[:80]
    return folder / experiment / f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"


def save(folder: Path, result: Result) -> Path:
    """Write a result whole or not at all; an earlier one of the same cell is replaced."""
    path = cell_file(folder, result.experiment, result.cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(asdict(result), indent=1, sort_keys=True, default=dict) + "\n")
    return path


def load(path: Path) -> Result:
    """Read one result. Raises ResultError if the file isn't one."""
    try:
        return Result(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ResultError(
            f"{path} is no result of groupclip reproduce ({error}); delete it to run its cell again"
        ) from error


def find(folder: Path, experiment: str, cell: Mapping[str, Any]) -> Result | None:
    """Return the result of a cell, or None if it hasn't been run: a suite that was stopped goes on where it was."""
    path = cell_file(folder, experiment, cell)
    if not path.exists():
        return None
    result = load(path)
    if dict(result.cell) != dict(cell) or result.experiment != experiment:
        raise ResultError(f"{path} holds another cell than its name says; delete it to run the cell again")
    return result


def load_all(folder: Path, experiment: str) -> list[Result]:
    """Return every result of an experiment, in the order of their file names."""
    return [load(path) for path in sorted((folder / experiment).glob("*.json"))]


def gather(folder: Path, experiment: str, file: Path) -> None:
    """Write every result of an experiment into one JSON file, a line each; :func:`gathered` reads it.

    Raises:
        ResultError: the folder holds none, or a file that isn't one. ``file`` is left as it was.
    """
    lines = [json.dumps(asdict(r), sort_keys=True, default=dict) for r in load_all(folder, experiment)]
    if not lines:
        raise ResultError(f"{folder} holds no results of {experiment}: give the folder that was --out of its runs")
    write_atomically(file, "[\n" + ",\n".join(lines) + "\n]\n")


def gathered(file: Path) -> list[Result]:
    """Return the results in a file of :func:`gather`; none if there is no such file. ResultError if it is another kind of file."""
    if not file.exists():
        return []
    try:
        return [Result(**facts) for facts in json.loads(file.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise ResultError(f"{file} holds no gathered results of groupclip reproduce ({error}); move it away") from error
