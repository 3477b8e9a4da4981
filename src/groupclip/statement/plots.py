"""Figures as SVG text, drawn by matplotlib without a display and without its global state.

Each figure of a report is one panel, as wide as a telephone: a page sets them side by side where there is room.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE, _RED, GREY = "#2563a8", "#b4442f", "#667080"
COLOURS = (
    *(_BLUE, _RED, "#3b8a5a", "#8a5aa8", "#c08a2e", "#2e9aa8"),
    *("#e07b9a", "#16233f", "#7a4a21", "#8fbf3f", "#f2a65a", "#9aa7d9"),
)
"""No two alike: as many lines as there are colours can be told apart."""
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "path",  # looks the same wherever it is opened
    "svg.hashsalt": "groupclip",  # the same figure gives the same file
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e6ea",
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
}
_LONGEST = 24  # characters of a group's name
_SINGLE = 4.2  # inches, at the 96 pixels of a page: its words have their size of print on a telephone

Curve = Sequence[tuple[float, float]]  # (x, y) points, x ascending


def accuracy(curve: Curve, levels: Mapping[str, float]) -> str:
    """Return accuracy on held-out records over the steps.

    Args:
        curve: (step, share right); may be empty. levels: what each level line means -> its share.
    """
    with drawing(1, width=_SINGLE) as (figure, (axes,)):
        for meaning, share in levels.items():
            _level(axes, meaning, share, side="right")
        if curve:
            axes.plot(*zip(*curve, strict=True), color=_BLUE, marker="o", markersize=3)
        axes.set(title="Accuracy on held-out records", ylim=(0, 1))
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        _over_steps(axes)
        return svg(figure)


def epsilon(curve: Curve, planned: float) -> str:
    """Return epsilon spent over the steps: (step, epsilon), and the planned one as the limit."""
    with drawing(1, width=_SINGLE) as (figure, (axes,)):
        _level(axes, "planned", planned, side="left")
        if curve:
            axes.plot(*zip(*curve, strict=True), color=_RED)
        axes.set(title="Epsilon spent", ylim=(0, planned * 1.1))
        _over_steps(axes)
        return svg(figure)


def noisy_norms(curves: Mapping[str, Curve], noise: Mapping[str, float]) -> str:
    """Norm of each group's noisy gradient over the steps, and what noise alone would give.

    Args:
        curves: group -> (step, norm); at most as many as there are COLOURS.
        noise: group -> root mean square of the norm of its noise.
    """
    rows = -(-len(curves) // 2)
    with drawing(1, height=2.8 + 0.18 * rows, width=_SINGLE) as (figure, (axes,)):
        names = short_names(list(curves))
        for name, colour, (group, curve) in zip(names, COLOURS, curves.items(), strict=False):
            axes.plot(*zip(*curve, strict=True), color=colour, linewidth=1, label=name)
            axes.axhline(noise[group], color=colour, linestyle=":", linewidth=1)
        axes.set(title="Norm of the noisy gradient; dotted: noise alone")
        axes.set_ylim(bottom=0)
        _over_steps(axes)
        figure.legend(frameon=False, fontsize=8, loc="outside lower left", ncols=2)
        return svg(figure)


def bars(values: Mapping[str, float], title: str) -> str:
    """Return one bar a group."""
    names = list(values)
    places = range(len(names))
    with drawing(1, height=min(0.9 + 0.22 * len(names), 12.0), width=_SINGLE) as (figure, (axes,)):
        axes.barh(places, [values[name] for name in names], color=_BLUE)
        axes.set(title=title)
        axes.xaxis.set_major_formatter(lambda number, _: f"{number:,.4g}" if number < 10_000 else f"{number:,.0f}")
        axes.xaxis.set_major_locator(_few_ticks())
        every = max(1, len(names) // 40)
        axes.set_yticks(places[::every], short_names(names)[::every])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        return svg(figure)


def of_runs(
    curves: Mapping[str, Curve], title: str, x: str, *, unit: str = "", x_unit: str = "", points: bool = False, joined: bool = False
) -> str:
    """Return several runs in one panel, each in a colour of its own.

    Args:
        curves: run -> points; at most as many as there are COLOURS. One without points has no line, and keeps its colour.
        x: what the horizontal axis is.
        unit: of the vertical axis: "%" for shares, "B", "s", or "" for a number.
        x_unit: of the horizontal axis; "" for whole numbers, such as steps.
        points: marks in the place of lines; whole numbers are on a logarithmic axis then.
        joined: a grey line through the points of all runs, from left to right.
    """
    from matplotlib.ticker import EngFormatter

    with drawing(1, height=2.8 + 0.18 * -(-len(curves) // 2), width=_SINGLE) as (figure, (axes,)):
        if joined:
            together = sorted(point for curve in curves.values() for point in curve)
            axes.plot(*zip(*together, strict=True), color=GREY, linewidth=0.8, zorder=1)
        widths = [1.2 + 3 * (len(curves) - i) / len(curves) for i in range(len(curves))]  # what lies below stands out at the sides
        for name, colour, width, curve in zip(short_names(list(curves)), COLOURS, widths, curves.values(), strict=False):
            if curve:
                marker, size = ("o", 3 + 1.5 * width) if points or len(curve) == 1 else ("none", 0)
                line = "none" if points else "-"
                look = {"marker": marker, "markersize": size, "linestyle": line, "linewidth": width}
                axes.plot(*zip(*curve, strict=True), color=colour, label=name, **look)
        axes.set(title=title)
        _over_steps(axes)
        axes.set_xlabel(x)
        if points and not x_unit:
            _at(axes, sorted({place for curve in curves.values() for place, _ in curve}))
        if x_unit:
            axes.xaxis.set_major_formatter(EngFormatter(x_unit))
            axes.xaxis.set_major_locator(_few_ticks())
        if unit == "%":
            axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")
        elif unit:
            axes.yaxis.set_major_formatter(EngFormatter(unit))
        if unit != "%":
            axes.set_ylim(bottom=0)
        figure.legend(frameon=False, fontsize=8, loc="outside lower left", ncols=2)
        return svg(figure)


def _at(axes: Axes, places: Sequence[float]) -> None:
    """Mark whole numbers > 0 on a logarithmic axis; of many, some."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(places[:: -(-len(places) // 8)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda place, _: f"{place:.0f}")


def in_units(value: float, unit: str) -> str:
    """Write a quantity with three digits and the unit's prefix: 0.0123 s is 12.3 ms."""
    from matplotlib.ticker import EngFormatter

    return EngFormatter(unit)(float(f"{value:.3g}"))


def _over_steps(axes: Axes) -> None:
    """Mark whole steps: there is no half a step."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


def _level(axes: Axes, meaning: str, at: float, *, side: str) -> None:
    axes.axhline(at, color=GREY, linestyle=":", linewidth=1)
    place = 0.99 if side == "right" else 0.01
    axes.annotate(
        meaning, (place, at), xycoords=("axes fraction", "data"), ha=side, va="bottom", color=GREY, fontsize=8
    )  # fmt: skip


class drawing:
    """Context of one figure of ``width`` times ``height`` inches with ``panels`` axes side by side; its style is set meanwhile."""

    def __init__(self, panels: int, height: float = 2.8, width: float = 8.4) -> None:
        import matplotlib

        self._panels, self._size = panels, (width, height)
        self._style = matplotlib.rc_context(_STYLE)

    def __enter__(self) -> tuple[Figure, tuple[Axes, ...]]:
        from matplotlib.figure import Figure

        self._style.__enter__()
        figure = Figure(figsize=self._size, layout="constrained")
        return figure, tuple(figure.subplots(1, self._panels, squeeze=False)[0])

    def __exit__(self, *error: object) -> None:
        self._style.__exit__(None, None, None)


def svg(figure: Figure) -> str:
    """Return what ``figure.savefig`` writes, without its first drawing, which places what the layout has placed."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    file, canvas, layout = io.StringIO(), FigureCanvasSVG(figure), figure.get_layout_engine()
    assert layout is not None
    layout.execute(figure)
    figure.set_layout_engine("none")
    canvas.print_svg(file, metadata={"Date": None, "Creator": None})
    return file.getvalue()


def _few_ticks():
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(4)


def short_names(names: Sequence[str]) -> list[str]:
    """Return the names of groups, at most 24 characters of each, still different: what all of them share goes, but for an item."""
    if max(map(len, names), default=0) <= _LONGEST:
        return list(names)
    parts = [name.split(".") for name in names]
    before, after = _count_shared(parts), _count_shared([p[::-1] for p in parts])
    least = min(map(len, parts))
    after = max(0, min(after, least - before - 1)) if len(names) > 1 else 0
    before = max(before - 1, 0) if len(names) > 1 and before < least else 0
    kept = [".".join(p[before : len(p) - after]) for p in parts]
    short = [k if len(k) <= _LONGEST else f"{k[:7]}...{k[-11:]}" for k in kept]
    return [s if short.count(s) == 1 else f"{s} {i}" for i, s in enumerate(short, 1)]


def _count_shared(parts: Sequence[Sequence[str]]) -> int:
    """Count the equal items with which all of them begin."""
    return next((i for i, items in enumerate(zip(*parts, strict=False)) if len(set(items)) > 1), min(map(len, parts)))
