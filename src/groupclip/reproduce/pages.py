"""The files that ``groupclip reproduce tables`` writes: one page for each table or figure, with its plot."""

from __future__ import annotations

from pathlib import Path

from ..run.files import write_atomically
from . import results
from .catalogue import catalogue
from .cells import EXPERIMENT
from .figures import figure_of
from .results import Result
from .scaled import MADE
from .tables import Found, scaled_table, table_page


def write_pages(folder: Path, out: Path) -> list[Path]:
    """Draw everything that lies in ``folder``, as ``--out`` of the runs was, into ``out``.

    The paper's tables are all written, empty ones too; of the scaled experiments those that have results.

    Raises:
        ResultError: a file that isn't a result.
        ValueError: the folder holds no results at all.
    """
    found = Found(results.load_all(folder, EXPERIMENT))
    scaled = {name: results.load_all(folder, name) for name in experiments_in(folder) if name != EXPERIMENT}
    if not len(found) and not scaled:
        raise ValueError(f"{folder} holds no results; run an experiment with --out {folder} first")
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
    """Names of the experiments with results in a folder that was given as ``--out``."""
    paths = [path for path in sorted(folder.iterdir()) if path.is_dir() and path.name != MADE]
    return [path.name for path in paths if any(path.glob("*.json"))]


def environments(found: list[Result]) -> str:
    """What results were made on, in a line."""
    kinds = {
        f"{r.environment['processor']}, {r.environment['threads']} threads, {r.environment['device']}, "
        f"torch {r.environment['torch']}"
        for r in found
    }
    hours = sum(r.seconds for r in found) / 3600
    return f"{len(found)} run{'s' * (len(found) > 1)}, {hours:.1f} hours of training, on {'; '.join(sorted(kinds))}."


def _write(path: Path, text: str) -> Path:
    write_atomically(path, text)
    return path
