"""Tables of results next to the paper's numbers, as Markdown."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .catalogue import Column, Row, Table
from .cells import Cell
from .printed import printed_settings
from .results import Result
from .selection import word

NOT_RUN = "not run"
GIB = 2**30  # docs/memory.md reads the paper's "GB" so


@dataclass(frozen=True)
class Seeds:
    """Holds what the runs of one cell with several seeds gave."""

    results: tuple[Result, ...]

    def metric(self, name: str) -> tuple[float, float] | None:
        """Return mean and standard deviation over seeds (nan for one seed); None if no run has it."""
        return _spread([r.metrics[name] for r in self.results if name in r.metrics])

    def memory(self) -> tuple[float, float] | None:
        """Return peak memory in GiB."""
        return _spread([r.peak_bytes / GIB for r in self.results if r.peak_bytes is not None])

    def seconds(self) -> tuple[float, float] | None:
        return _spread([r.seconds for r in self.results])

    @property
    def groups(self) -> int | None:
        """M; None if nothing was run."""
        return self.results[0].groups if self.results else None


class Found:
    """Results of full-scale runs, by cell, whatever their seed."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._by_cell: dict[tuple[Any, ...], list[Result]] = {}
        for result in results:
            self._by_cell.setdefault(_key(result.cell), []).append(result)

    def __len__(self) -> int:
        return sum(len(results) for results in self._by_cell.values())

    def of(self, cell: Cell) -> Seeds:
        return Seeds(tuple(self._by_cell.get(_key(cell.key()), ())))


def table_page(table: Table, found: Found) -> str:
    """Title, notes and the table: each entry is what was measured here, and the paper's number in brackets."""
    parts = [
        f"## {table.title}",
        "",
        f"`groupclip reproduce {table.name}` ({table.kind}, {table.label}). Here (paper).",
    ]
    for columns, rows in itertools.groupby(table.rows, key=lambda row: row.columns):
        parts += ["", _part(table, columns, list(rows), found)]
    parts += ["", *(f"- {note}" for note in table.notes)]
    whys = dict.fromkeys(row.why_not for row in table.rows if row.why_not)
    cells = {str(cell.key()): cell for row in table.rows for cell in row.cells()}
    parts += [f"- {words}" for words in lost_steps(r for cell in cells.values() for r in found.of(cell).results)]
    return "\n".join([*parts, *(f"- Not run: {why}" for why in whys), ""])


def lost_steps(results: Iterable[Result]) -> list[str]:
    """Say of how many charged steps crashes lost the updates; nothing where there are none."""
    lost = [r.privacy["steps_lost"] for r in results if r.privacy.get("steps_lost")]
    return [f"{sum(lost)} charged step(s) of {len(lost)} run(s) have no update: crashes lost them."] if lost else []


def _part(table: Table, columns: tuple[Column, ...], rows: Sequence[Row], found: Found) -> str:
    """Return rows that have their columns in common."""
    titles = [title for column in columns for title in _titles(table, column, columns)]
    body = [[row.model, _method(row, found), row.reference, *_entries(table, row, found)] for row in rows]
    return markdown(["model", "groups", "whose numbers", *titles], body)


def _titles(table: Table, column: Column, columns: Sequence[Column]) -> list[str]:
    settings = printed_settings().of(column.data)
    epsilon = "without privacy" if column.epsilon is None else f"epsilon {column.epsilon:g}"
    words = [settings.title, epsilon] + ([f"{column.epochs} epochs"] if len({c.epochs for c in columns}) > 1 else [])
    titles = [", ".join([*words, score.title] if score.title else words) for score in settings.scores]
    return [*titles, "peak memory, GiB"] if table.memory else titles


def _method(row: Row, found: Found) -> str:
    """Name of the style and M: the paper's, and ours where it differs."""
    ours = {seeds.groups for cell in row.cells() if (seeds := found.of(cell)).groups}
    counted = ", ".join(str(m) for m in sorted(ours) if m is not None)
    groups = "" if row.groups is None else f" (M={row.groups})"
    if counted and counted != str(row.groups):
        groups = f" (M={row.groups}, here {counted})" if row.groups is not None else f" (M={counted})"
    return f"{row.method}{groups}"


def _entries(table: Table, row: Row, found: Found) -> list[str]:
    entries: list[str] = []
    for column, numbers in zip(row.columns, row.numbers, strict=True):
        cell = row.cell(column)
        seeds = Seeds(()) if cell is None else found.of(cell)
        scores = printed_settings().of(column.data).scores
        for score, number in zip(scores, numbers, strict=False):
            here = seeds.metric(score.name)
            entries.append(entry(here, number, score.digits, can_run=cell is not None, ran=bool(seeds.results)))
        if table.memory:
            entries.append(
                entry(
                    seeds.memory(),
                    numbers[-1],
                    2,
                    can_run=cell is not None,
                    ran=bool(seeds.results),
                    absent="not measured",
                )
            )
    return entries


def entry(
    here: tuple[float, float] | None, paper: float | None, digits: int, *, can_run: bool, ran: bool, absent: str = "-"
) -> str:
    """Write ``81.20 ± 0.31 (82.58)``, or "not run" if nothing is."""
    if here is None:
        ours = absent if ran else NOT_RUN if can_run else "-"
    else:
        ours = f"{here[0]:.{digits}f}" + ("" if math.isnan(here[1]) else f" ± {here[1]:.{digits}f}")
    return ours if paper is None else f"{ours} ({paper:.{digits}f})"


def scaled_table(results: Sequence[Result]) -> str:
    """Write results of a scaled experiment: a row for each kind of cell, a column for each epsilon, means and deviations."""
    epsilons = sorted({_epsilon(r) for r in results})
    rows: dict[tuple[tuple[str, str], ...], dict[float, list[Result]]] = {}
    for result in results:
        kind = tuple((k, word(v)) for k, v in result.cell.items() if k not in ("epsilon", "seed"))
        rows.setdefault(kind, {}).setdefault(_epsilon(result), []).append(result)
    fields = list(dict.fromkeys(name for kind in rows for name, _ in kind))
    metrics = list(dict.fromkeys(name for result in results for name in result.metrics))
    titles = [f"{_budget(e)}, {metric}" if len(metrics) > 1 else _budget(e) for e in epsilons for metric in metrics]
    body = []
    for kind, by_epsilon in rows.items():
        every = [r for part in by_epsilon.values() for r in part]
        entries = []
        for epsilon, metric in itertools.product(epsilons, metrics):
            seeds = Seeds(tuple(by_epsilon.get(epsilon, ())))
            entries.append(
                entry(seeds.metric(metric), None, _digits(every, metric), can_run=True, ran=bool(seeds.results))
            )
        groups = ", ".join(str(m) for m in sorted({r.groups for r in every if r.privacy}))
        body.append([*(dict(kind).get(field, "") for field in fields), groups or "-", *entries])
    return markdown([*fields, "M", *titles], body)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of words."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def _key(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple((name, word(cell[name])) for name in sorted(cell) if name != "seed")


def _epsilon(result: Result) -> float:
    epsilon = result.cell.get("epsilon")
    return math.inf if epsilon is None else float(epsilon)


def _budget(epsilon: float) -> str:
    return "without privacy" if epsilon == math.inf else f"epsilon {epsilon:g}"


def _digits(results: Sequence[Result], metric: str) -> int:
    """Return the digits to show: two for percent, three for scores of a few units."""
    return 2 if max((abs(r.metrics.get(metric, 0.0)) for r in results), default=0) > 20 else 3


def _spread(values: Sequence[float]) -> tuple[float, float] | None:
    if not values:
        return None
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else math.nan
