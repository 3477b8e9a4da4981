"""Means over seeds, their spread, and differences with a standard error: what a page says of a scaled experiment."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ..results import Result

Cell = Mapping[str, Any]  # of a result, without its seed


@dataclass(frozen=True)
class Score:
    """One metric of one cell over its seeds, in the metric's units."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def deviation(self) -> float:
        """Standard deviation of single runs (n - 1); nan of one run."""
        n = len(self.values)
        return math.sqrt(self.squares / (n - 1)) if n > 1 else math.nan

    @property
    def squares(self) -> float:
        """Sum of squared differences from the mean."""
        return sum((v - self.mean) ** 2 for v in self.values)

    def __str__(self) -> str:
        """Mean, deviation, and in brackets the number of runs."""
        spread = f" ± {self.deviation:.1f}" if len(self.values) > 1 else ""
        return f"{self.mean:.1f}{spread} ({len(self.values)})"


@dataclass(frozen=True)
class Difference:
    """Holds a difference of means, with its standard error."""

    mean: float
    error: float

    @property
    def clear(self) -> bool:
        """More than two standard errors from 0."""
        return abs(self.mean) > 2 * self.error

    def __str__(self) -> str:
        return f"{self.mean:+.1f} ± {self.error:.1f}"


class Scores:
    """The metric of all cells of an experiment, by the cell without its seed."""

    def __init__(self, results: Iterable[Result], metric: str) -> None:
        found: dict[tuple[tuple[str, Any], ...], list[float]] = {}
        self.groups: dict[tuple[tuple[str, Any], ...], int] = {}
        for result in results:
            key = _key({name: value for name, value in result.cell.items() if name != "seed"})
            found.setdefault(key, []).append(result.metrics[metric])
            self.groups[key] = result.groups
        self._found = {key: Score(tuple(values)) for key, values in found.items()}

    def __len__(self) -> int:
        return len(self._found)

    def of(self, **cell: Any) -> Score | None:
        """Return the score of a cell, None if no seed of it was run."""
        return self._found.get(_key(cell))

    def number_of_groups(self, **cell: Any) -> int:
        return self.groups[_key(cell)]

    def pooled(self, among: Callable[[Mapping[str, Any]], bool] = lambda _: True) -> float:
        """Return the standard deviation of single runs around the means of their cells, over all cells (or those of ``among``).

        One cell's own deviation over three runs is off by half as often as not; many cells together say it well.
        """
        kept = [s for key, s in self._found.items() if among(dict(key))]
        free = sum(len(s.values) - 1 for s in kept)
        return math.sqrt(sum(s.squares for s in kept) / free) if free else math.nan

    def difference(self, first: Cell, second: Cell, deviation: float) -> Difference | None:
        """first - second, with the standard error that runs of this deviation give; None if one of them wasn't run."""
        return self.contrast([(1.0, first), (-1.0, second)], deviation)

    def contrast(self, terms: Sequence[tuple[float, Cell]], deviation: float) -> Difference | None:
        """sum of weight * mean of a cell; a cell may come more than once. None if one of them wasn't run."""
        weights: dict[tuple[tuple[str, Any], ...], float] = {}
        for weight, cell in terms:
            weights[_key(cell)] = weights.get(_key(cell), 0.0) + weight
        if not weights.keys() <= self._found.keys():
            return None
        mean = sum(weight * self._found[key].mean for key, weight in weights.items())
        square = sum(weight**2 / len(self._found[key].values) for key, weight in weights.items())
        return Difference(mean, deviation * math.sqrt(square))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write a table in Markdown; the first column is aligned left, the others right."""
    lines = [list(head), ["---"] + ["---:"] * (len(head) - 1), *(list(map(str, row)) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _key(cell: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(cell.items(), key=lambda item: item[0]))
