"""The table of docs/records.md, made of results: what was run, how often, and what wasn't."""

from __future__ import annotations

from collections.abc import Sequence

from ..results import Result
from ..scaled.summary import Score, table
from .rows import ROWS, SEEDS, Row

HEAD = ("data", "method", "epsilon", "best known, %", "groupclip, %", "without privacy, %", "time a run", "command")


def page(results: Sequence[Result]) -> str:
    """Return the table, and below it sources and notes."""
    lines = [[*_cells(row, results)] for row in ROWS]
    return "\n\n".join([table(list(HEAD), lines), _notes()])


def _cells(row: Row, results: Sequence[Result]) -> list[str]:
    private, plain = ([r for r in results if _is_of(r, row, epsilon)] for epsilon in (row.epsilon, None))
    seconds = [r.seconds for r in private]
    return [
        row.data,
        row.method,
        f"{row.epsilon:g}, delta {row.delta:g}",
        "none that compares" if row.best is None else f"{row.best:g}",
        _score(private, row),
        _score(plain, row),
        f"{sum(seconds) / len(seconds):,.0f} s" if seconds else "",
        f"`groupclip reproduce records --row {row.name}{' --device cuda' if row.gpu else ''}`",
    ]


def _is_of(result: Result, row: Row, epsilon: float | None) -> bool:
    return result.cell["row"] == row.name and result.cell["epsilon"] == epsilon


def _score(results: Sequence[Result], row: Row) -> str:
    """Return mean, spread and number of runs; what is missing of the five is said."""
    if not results:
        return "not run: it needs a GPU" if row.gpu else "not run"
    values = tuple(r.metrics["accuracy"] for r in results)
    score = Score(values)
    spread = f" ± {score.deviation:.2f}" if len(values) > 1 else ""
    count = "1 run" if len(values) == 1 else f"{len(values)} runs"
    return f"{score.mean:.2f}{spread} ({count})"


def _notes() -> str:
    lines = []
    for row in ROWS:
        told = [*([f"best known: {row.source}"] if row.source else []), *row.notes]
        if told:
            lines.append(f"- {row.name}: {'; '.join(told)}.")
    lines.append(f"- ±: standard deviation of single runs. A full row has {len(SEEDS)} runs.")
    return "\n".join(lines)
