"""Figures of memory, as PNG or SVG by the ending of the file's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..statement.plots import COLOURS, GREY, drawing
from .sizes import show_bytes

_POINTS = 2000  # of a curve that are drawn, the highest of each stretch


def draw_curves(
    path: Path, predicted: Mapping[str, Sequence[int]], measured: Mapping[str, Sequence[int]] | None = None, title: str = ""
) -> None:  # fmt: skip
    """Draw live bytes over a pass: lines as predicted, dots as measured. The names of ``measured`` are among the predicted."""
    with drawing(1, height=3.6) as (figure, (axes,)):
        for place, (name, levels) in enumerate(predicted.items()):
            colour = GREY if place == 0 else COLOURS[(place - 1) % len(COLOURS)]
            axes.plot(*_thinned(levels), color=colour, linewidth=1, label=name)
            if measured is not None and name in measured:
                x, y = _thinned(measured[name])
                axes.plot(x, y, ".", color=colour, markersize=2, markevery=29, label=f"{name}, measured")
        axes.set(title=title or "Live bytes over one pass, beside parameters", xlabel="share of the pass's operations")
        axes.yaxis.set_major_formatter(as_bytes)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
        save(figure, path)


def _thinned(levels: Sequence[int]) -> tuple[list[float], list[int]]:
    step = max(1, len(levels) // _POINTS)
    heights = [max(levels[i : i + step]) for i in range(0, len(levels), step)]
    return [i / len(heights) for i in range(len(heights))], heights


def as_bytes(size: float, _: object) -> str:
    """Write a number of an axis as bytes."""
    return show_bytes(size)


def save(figure, path: Path) -> None:
    ending = path.suffix.lower().removeprefix(".")
    if ending not in ("png", "svg"):
        raise ValueError(f"{path}: a figure is saved as .png or .svg")
    metadata = {"Date": None, "Creator": None} if ending == "svg" else {"Software": None}
    figure.savefig(path, format=ending, dpi=160, metadata=metadata)
