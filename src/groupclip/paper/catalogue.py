"""Every table and figure of the paper, row by row: what it prints, and what runs give the same. Read from ``paper/*.yaml``."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from .cells import Cell
from .printed import printed_settings, read

ORDER = (
    "styles", "groups", "sst2", "order", "same-speed", "convergence", "two-group", "memory", "throughput", "non-uniform",
    "vision", "e2e", "roberta",
)  # fmt: skip
OURS = "ours"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table: data, epsilon (None without privacy), and epochs where they aren't those of the settings."""

    data: str
    epsilon: float | None
    epochs: int | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a table.

    method, reference: as printed; reference is "ours" for the paper's own numbers, else whose they are.
    clipping: style that runs it, "none" without privacy; None if it can't be run, and then ``why_not`` says why.
    clip, thresholds: "automatic" or "abadi"; "fixed" or "adaptive".
    groups: the printed M, None if none is.
    numbers: one tuple a column: the printed scores (and peak memory in GB, if the table has it); None where nothing is.
    """

    model: str
    method: str
    reference: str
    clipping: str | None
    clip: str
    thresholds: str
    groups: int | None
    columns: tuple[Column, ...]
    numbers: tuple[tuple[float | None, ...], ...]
    why_not: str = ""

    def cell(self, column: Column, seed: int = 0) -> Cell | None:
        """Return the run that gives this row's numbers in ``column``; None if it can't be run."""
        if self.clipping is None:
            return None
        return Cell(
            model=self.model, data=column.data, epsilon=column.epsilon, clipping=self.clipping, clip=self.clip,
            thresholds=self.thresholds, epochs=column.epochs or printed_settings().of(column.data).epochs, seed=seed,
        )  # fmt: skip

    def cells(self, seed: int = 0) -> list[Cell]:
        """Return the runs of all columns."""
        return [cell for column in self.columns if (cell := self.cell(column, seed)) is not None]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table or figure.

    name: in commands. label: in the paper's source. kind: "table" or "figure".
    memory: whether numbers end with peak memory. draw: which plot of :mod:`groupclip.paper.figures` is made of it.
    commands: further ones, which train nothing.
    """

    name: str
    label: str
    title: str
    kind: str
    memory: bool
    draw: str
    notes: tuple[str, ...]
    commands: tuple[str, ...]
    rows: tuple[Row, ...]

    def command(self, row: Row) -> str:
        """Return what runs this row, all columns of it; empty if it can't be run. Names no more than tells it from other rows."""
        if row.clipping is None:
            return ""
        words = ["groupclip", "reproduce", self.name, "--model", row.model, "--clipping", row.clipping]
        near = [r for r in self.rows if (r.model, r.clipping) == (row.model, row.clipping)]
        for option in ("clip", "thresholds"):
            if len({getattr(r, option) for r in near}) > 1:
                words += [f"--{option}", getattr(row, option)]
        return shlex.join(words)


@cache
def catalogue() -> Mapping[str, Table]:
    """Name -> table, in the paper's order."""
    return {name: _table(name) for name in ORDER}


def _table(name: str) -> Table:
    facts = read(name)
    return Table(
        name=name, label=facts["label"], title=facts["title"], kind=facts.get("kind", "table"),
        memory=facts.get("memory", False), draw=facts.get("draw", ""), notes=tuple(facts.get("notes", ())),
        commands=tuple(facts.get("commands", ())),
        rows=tuple(row for given in facts.get("rows", ()) for row in _rows(name, facts, given)),
    )  # fmt: skip


def _rows(name: str, table: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[Row]:
    """Yield one row, or one for each pair of a list of models and a list of styles."""
    settings = printed_settings()
    columns = tuple(_columns(given.get("columns", table.get("columns"))))
    for model, clipping in itertools.product(_list(given["model"]), _list(given["clipping"])):
        wide = [settings.width(c.data) + bool(table.get("memory")) for c in columns]
        numbers = given.get("numbers", [None] * len(columns))
        if len(numbers) != len(columns):
            raise ValueError(f"{name}.yaml, {model} {clipping}: {len(numbers)} numbers for {len(columns)} columns")
        yield Row(
            model=model, method=given.get("method", clipping), reference=given.get("reference", given.get("source", OURS)),
            clipping=clipping, clip=given.get("clip", "automatic"), thresholds=given.get("thresholds", "fixed"),
            groups=given.get("groups"), columns=columns,
            numbers=tuple(_scores(entry, width) for entry, width in zip(numbers, wide, strict=True)),
            why_not=settings.not_run[given["why_not"]] if clipping is None else "",
        )  # fmt: skip


def _columns(axes: Mapping[str, Sequence[Any]]) -> Iterator[Column]:
    """Yield every combination of the axes, the first one changing slowest."""
    for values in itertools.product(*axes.values()):
        given = dict(zip(axes, values, strict=True))
        epsilon = given.pop("epsilon")  # one spelling, 2.0, for results are filed under it
        yield Column(epsilon=None if epsilon is None else float(epsilon), **given)


def _scores(entry: Any, width: int) -> tuple[float | None, ...]:
    scores = tuple(entry) if isinstance(entry, list) else (entry,) + (None,) * (width - 1)
    if len(scores) != width:
        raise ValueError(f"{entry} has {len(scores)} scores for {width}")
    return scores


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
