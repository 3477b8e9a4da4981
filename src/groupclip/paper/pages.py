"""The files that ``groupclip reproduce tables`` writes: one page for each table or figure, with its plot."""

from __future__ import annotations

from pathlib import Path

from ..run.files import write_atomically
from . import results
from .catalogue import catalogue
from .cells import EXPERIMENT
from .figures import figure_of
from .results import Result
from .scaled.experiment import MADE
from .tables import Found, lost_steps, scaled_table, table_page


def write_pages(folder: Path, out: Path) -> list[Path]:
    """Draw everything that lies in ``folder`` into ``out``.

    ``folder`` is as ``--out`` of the runs was, a folder an experiment, or holds gathered files, ``NAME.json`` (see
    :func:`groupclip.paper.results.gather`), or both; of a cell that is in both, the run's own file counts.

    The paper's tables are all written, empty ones too; of the scaled experiments those that have results.

    Raises:
        ResultError: a file that isn't a result.
        ValueError: the folder holds no results at all.
    """
    names = sorted({*experiments_in(folder), *(path.stem for path in folder.glob("*.json"))})
    by_experiment = {name: _results_of(folder, name) for name in names}
    found = Found(by_experiment.pop(EXPERIMENT, []))
    scaled = {name: of_one for name, of_one in by_experiment.items() if of_one}
    if not len(found) and not scaled:
        raise ValueError(
            f"{folder} holds no results, neither folders EXPERIMENT/ of single runs nor gathered files EXPERIMENT.json; run an "
            f"experiment with --out {folder} first"
        )
    out.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for table in catalogue().values():
        if not table.rows:
            continue
        drawn = figure_of(table, found)
        picture = f"![{table.title}]({table.name}.svg)\n" if drawn is not None else ""
        if drawn is not None:
            files.append(_write(out / f"{table.name}.svg", drawn))
        files.append(_write(out / f"{table.name}.md", f"{table_page(table, found)}\n{picture}"))
    for name, of_one in scaled.items():
        files.append(_write(out / f"{name}.md", f"## {name}\n\n{scaled_table(of_one)}\n\n{environments(of_one)}\n"))
    return files


def experiments_in(folder: Path) -> list[str]:
    """Return names of the experiments with results in a folder that was given as ``--out``."""
    paths = [path for path in sorted(folder.iterdir()) if path.is_dir() and path.name != MADE]
    return [path.name for path in paths if any(path.glob("*.json"))]


def _results_of(folder: Path, experiment: str) -> list[Result]:
    single = results.load_all(folder, experiment)
    cells = [r.cell for r in single]
    return [*single, *(r for r in results.gathered(folder / f"{experiment}.json") if r.cell not in cells)]


def environments(found: list[Result]) -> str:
    """Return what results were made on, in a line, and what crashes lost of them."""
    kinds = {
        f"{r.environment['processor']}, {r.environment['threads']} threads, {r.environment['device']}, "
        f"torch {r.environment['torch']}"
        for r in found
    }
    hours = sum(r.seconds for r in found) / 3600
    line = f"{len(found)} run{'s' * (len(found) > 1)}, {hours:.1f} hours of training, on {'; '.join(sorted(kinds))}."
    return " ".join([line, *lost_steps(found)])


def _write(path: Path, text: str) -> Path:
    write_atomically(path, text)
    return path
