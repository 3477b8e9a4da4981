"""Figures as SVG text, drawn by matplotlib without a display and without its global state."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE, _RED, GREY = "#2563a8", "#b4442f", "#667080"
COLOURS = (_BLUE, _RED, "#3b8a5a", "#8a5aa8", "#c08a2e", "#2e9aa8")
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
_MOST_LINES = 12  # of one colour legend

Curve = Sequence[tuple[float, float]]  # (x, y) points, x ascending


def accuracy_and_epsilon(accuracy: Curve, epsilon: Curve, planned_epsilon: float, chance: float) -> str:
    """Two panels over the steps: accuracy on held-out records, and epsilon spent.

    Args:
        accuracy: (step, share right); may be empty. epsilon: (step, epsilon spent).
        planned_epsilon: drawn as the limit. chance: the accuracy of guessing, drawn as a line.
    """
    with drawing(2) as (figure, (left, right)):
        left.axhline(chance, color=GREY, linestyle=":", linewidth=1)
        left.annotate(
            "guessing",
            (0.99, chance),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            color=GREY,
        )
        if accuracy:
            left.plot(*zip(*accuracy, strict=True), color=_BLUE, marker="o", markersize=3)
        left.set(title="Accuracy on held-out records", xlabel="step", ylim=(0, 1))
        left.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        right.axhline(planned_epsilon, color=GREY, linestyle=":", linewidth=1)
        right.annotate(
            "planned",
            (0.01, planned_epsilon),
            xycoords=("axes fraction", "data"),
            ha="left",
            va="bottom",
            color=GREY,
        )
        if epsilon:
            right.plot(*zip(*epsilon, strict=True), color=_RED)
        right.set(title="Epsilon spent", xlabel="step", ylim=(0, planned_epsilon * 1.1))
        return svg(figure)


def noisy_norms(curves: Mapping[str, Curve], noise: Mapping[str, float]) -> str:
    """Norm of each group's noisy gradient over the steps, and what noise alone would give.

    Args:
        curves: group -> (step, norm). noise: group -> root mean square of the norm of its noise.
    """
    with drawing(1) as (figure, (axes,)):
        for place, (group, curve) in enumerate(list(curves.items())[:_MOST_LINES]):
            colour = COLOURS[place % len(COLOURS)]
            if curve:
                axes.plot(*zip(*curve, strict=True), color=colour, linewidth=1, label=group)
            axes.axhline(noise[group], color=colour, linestyle=":", linewidth=1)
        rest = len(curves) - _MOST_LINES
        title = "Norm of the noisy gradient; dotted: noise alone"
        axes.set(title=title + (f" ({rest} more groups not drawn)" if rest > 0 else ""), xlabel="step")
        axes.set_ylim(bottom=0)
        if any(curves.values()):
            axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
        return svg(figure)


def groups(sizes: Mapping[str, int], thresholds: Mapping[str, float]) -> str:
    """One bar a group: numbers in it, and its clipping threshold R_m."""
    names = list(sizes)
    places = range(len(names))
    with drawing(2, height=min(1.2 + 0.22 * len(names), 12.0)) as (figure, (left, right)):
        left.barh(places, [sizes[name] for name in names], color=_BLUE)
        left.set(title="Numbers in the group")
        left.xaxis.set_major_formatter(lambda number, _: f"{number:,.0f}")
        left.xaxis.set_major_locator(_few_ticks())
        right.barh(places, [thresholds[name] for name in names], color=_RED)
        right.set(title="Clipping threshold R_m")
        every = max(1, len(names) // 40)
        for axes in (left, right):
            axes.set_yticks(places[::every])
            axes.invert_yaxis()
            axes.grid(visible=False, axis="y")
        left.set_yticklabels([_short(name) for name in names[::every]])
        right.set_yticklabels([])
        return svg(figure)


class drawing:
    """Context of one figure with ``panels`` axes side by side; the style is set for that time alone."""

    def __init__(self, panels: int, height: float = 2.8) -> None:
        import matplotlib

        self._panels, self._height = panels, height
        self._style = matplotlib.rc_context(_STYLE)

    def __enter__(self) -> tuple[Figure, tuple[Axes, ...]]:
        from matplotlib.figure import Figure

        self._style.__enter__()
        figure = Figure(figsize=(8.4, self._height), layout="constrained")
        return figure, tuple(figure.subplots(1, self._panels, squeeze=False)[0])

    def __exit__(self, *error: object) -> None:
        self._style.__exit__(None, None, None)


def svg(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()


def _few_ticks():
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(4)


def _short(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:21]}..."
