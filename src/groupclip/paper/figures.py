"""Plots of results next to the paper's numbers, as SVG text. Filled marks: measured here; hollow ones: the paper's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

from ..statement.plots import COLOURS, GREY, Curve, drawing, svg
from .catalogue import OURS, Row, Table, catalogue
from .cells import PLAIN, Cell
from .printed import printed_settings
from .tables import Found

Points = dict[str, tuple[float, float]]  # label of a point -> (x, y)
_MOST = 5  # panels beside each other


def figure_of(table: Table, found: Found) -> str | None:
    """Return the plot of a table or figure, as far as it was run; None if it has none, or nothing was run."""
    match table.draw:
        case "groups":
            return over_groups(table, found)
        case "trade-off":
            return trade_off(table, found)
        case "same-speed":
            return same_speed(table, found)
        case _:
            return None


def over_groups(table: Table, found: Found) -> str | None:
    """Score over M: a panel for each data set, a line for each model and epsilon; and a panel of memory if it was measured.

    Of several scores the first is drawn.
    """
    data = list(dict.fromkeys(cell.data for row in table.rows for cell in row.cells()))[:_MOST]
    panels = {name: _lines(table, found, name) for name in data}
    panels = {name: lines for name, lines in panels.items() if any(ours for ours, _ in lines.values())}
    if not panels:
        return None
    memory = _memory_lines(table, found) if table.memory else {}
    labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
    colour = {label: COLOURS[place % len(COLOURS)] for place, label in enumerate(labels)}
    with drawing(len(panels) + bool(memory), height=3.2) as (figure, axes):
        for panel, (name, lines) in zip(axes, panels.items(), strict=False):
            for label, (ours, paper) in lines.items():
                _two(panel, label, ours, paper, colour[label])
            panel.set(title=printed_settings().of(name).title)
        for label, curve in memory.items():
            axes[-1].plot(*zip(*curve, strict=True), "o-", color=colour[label], markersize=4)
        if memory:
            axes[-1].set(title="Peak memory, GiB")
        for panel in axes:
            panel.set(xlabel="groups M", xscale="log")
        handles = {
            label: handle for panel in axes for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        axes[-1].legend(
            handles.values(), handles.keys(), frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1)
        )
        return svg(figure)


def trade_off(table: Table, found: Found) -> str | None:
    """Return accuracy against peak memory, a panel for each model: uniform groups joined by a line, two-group points apart."""
    models = list(dict.fromkeys(row.model for row in table.rows))
    points = {model: _against_memory(table, found, model) for model in models}
    if not any(ours for ours, _ in points.values()):
        return None
    with drawing(len(points), height=3.2) as (figure, axes):
        for panel, (model, (ours, paper)) in zip(axes, points.items(), strict=True):
            for marks, style, colour in ((ours, "o", COLOURS[0]), (paper, "s", GREY)):
                for label, (x, y) in marks.items():
                    face = colour if style == "o" else "none"
                    panel.plot([x], [y], style, color=colour, markerfacecolor=face, markersize=5)
                    panel.annotate(label, (x, y), textcoords="offset points", xytext=(4, 3), fontsize=7, color=colour)
            panel.set(title=f"{model}; squares: the paper", xlabel="peak memory, GiB", ylabel="accuracy")
        return svg(figure)


def same_speed(table: Table, found: Found) -> str | None:
    """Minutes and peak memory of a whole run, a bar for each style."""
    rows = [(row, found.of(cell)) for row in table.rows for cell in row.cells()]
    rows = [(row, seeds) for row, seeds in rows if seeds.results]
    if not rows:
        return None
    names = [row.method for row, _ in rows]
    with drawing(2, height=1.2 + 0.25 * len(rows)) as (figure, (left, right)):
        seconds = [seeds.seconds() for _, seeds in rows]
        left.barh(names, [s[0] / 60 if s else math.nan for s in seconds], color=COLOURS[0])
        left.set(title="Minutes of the run")
        memory = [seeds.memory() for _, seeds in rows]
        right.barh(names, [m[0] if m else math.nan for m in memory], color=COLOURS[1])
        right.set(title="Peak memory, GiB")
        for axes in (left, right):
            axes.invert_yaxis()
            axes.grid(visible=False, axis="y")
        return svg(figure)


def _lines(table: Table, found: Found, data: str) -> dict[str, tuple[Curve, Curve]]:
    """Label -> (ours, paper's), points (M, score) in ascending M."""
    name = printed_settings().of(data).scores[0].name
    lines: dict[str, tuple[list[tuple[float, float]], list[tuple[float, float]]]] = {}
    for row, cell in _of_the_paper(table.rows):
        if cell.data != data or cell.epsilon is None or cell.clipping.startswith("boundaries"):
            continue
        ours, paper = lines.setdefault(_label(table, cell), ([], []))
        seeds = found.of(cell)
        if (here := seeds.metric(name)) is not None and seeds.groups:
            ours.append((seeds.groups, here[0]))
        groups, scores = printed(cell)
        groups = groups or row.groups
        if groups is not None and scores and scores[0] is not None:
            paper.append((groups, scores[0]))
    return {label: (sorted(ours), sorted(paper)) for label, (ours, paper) in lines.items()}


def _memory_lines(table: Table, found: Found) -> dict[str, Curve]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for _, cell in _of_the_paper(table.rows):
        seeds = found.of(cell)
        if cell.clipping != PLAIN and (memory := seeds.memory()) is not None and seeds.groups:
            lines.setdefault(_label(table, cell), []).append((seeds.groups, memory[0]))
    return {model: sorted(points) for model, points in lines.items()}


def _label(table: Table, cell: Cell) -> str:
    """Return the model, and epsilon where the table has the model at several."""
    epsilons = {c.epsilon for row in table.rows for c in row.cells() if c.model == cell.model and c.epsilon is not None}
    return f"{cell.model}, epsilon {cell.epsilon:g}" if len(epsilons) > 1 else cell.model


def _against_memory(table: Table, found: Found, model: str) -> tuple[Points, Points]:
    ours: Points = {}
    paper: Points = {}
    for _, cell in _of_the_paper([row for row in table.rows if row.model == model]):
        seeds, name = found.of(cell), printed_settings().of(cell.data).scores[0].name
        here, memory = seeds.metric(name), seeds.memory()
        if here is not None and memory is not None:
            ours[cell.clipping] = (memory[0], here[0])
        numbers = _printed_with_memory().get(_whatever_seed(cell))
        if numbers is not None and numbers[0] is not None and numbers[1] is not None:
            paper[cell.clipping] = (numbers[1], numbers[0])
    return ours, paper


def _of_the_paper(rows: Sequence[Row]) -> list[tuple[Row, Cell]]:
    return [(row, cell) for row in rows if row.reference == OURS for cell in row.cells()]


def printed(cell: Cell) -> tuple[int | None, tuple[float | None, ...]]:
    """M and scores that the paper prints for a run, in whichever table; (None, ()) if it prints none."""
    return _printed().get(_whatever_seed(cell), (None, ()))


@cache
def _printed() -> Mapping[Cell, tuple[int | None, tuple[float | None, ...]]]:
    found: dict[Cell, tuple[int | None, tuple[float | None, ...]]] = {}
    for table in catalogue().values():
        for row in table.rows:
            for column, numbers in zip(row.columns, row.numbers, strict=True):
                cell = row.cell(column)
                if row.reference == OURS and cell is not None and any(n is not None for n in numbers):
                    scores = numbers[: printed_settings().width(cell.data)]
                    found.setdefault(cell, (row.groups, scores))
    return found


@cache
def _printed_with_memory() -> Mapping[Cell, tuple[float | None, ...]]:
    table = catalogue()["two-group"]
    return {cell: row.numbers[0] for row in table.rows for cell in row.cells()}


def _whatever_seed(cell: Cell) -> Cell:
    from dataclasses import replace

    return replace(cell, seed=0)


def _two(panel, label: str, ours: Curve, paper: Curve, colour: str) -> None:
    if ours:
        panel.plot(*zip(*ours, strict=True), "o-", color=colour, markersize=4, label=label)
    if paper:
        panel.plot(
            *zip(*paper, strict=True), "o:", color=colour, markersize=5, markerfacecolor="none", linewidth=1,
            label=f"{label}, paper",
        )  # fmt: skip
