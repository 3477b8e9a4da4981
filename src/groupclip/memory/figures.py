"""Figures of memory, as PNG or SVG by the ending of the file's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..statement.plots import COLOURS, GREY, Curve, drawing

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
        axes.yaxis.set_major_formatter(_bytes)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
        save(figure, path)


def draw_lines(path: Path, lines: Mapping[str, Curve], title: str, xlabel: str) -> None:
    """Draw bytes against a number: peak memory against the number of groups, or against a boundary."""
    with drawing(1, height=3.2) as (figure, (axes,)):
        for place, (name, line) in enumerate(lines.items()):
            axes.plot(
                *zip(*line, strict=True), marker="o", markersize=3, color=COLOURS[place % len(COLOURS)], label=name
            )
        axes.set(title=title, xlabel=xlabel)
        axes.yaxis.set_major_formatter(_bytes)
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
        save(figure, path)


def draw_trade(
    path: Path, peaks: Mapping[str, Curve], throughputs: Mapping[str, Curve], plain: int, title: str
) -> None:  # fmt: skip
    """Draw peak bytes beside throughput over that of plain training, both against the number of groups.

    Args:
        peaks, throughputs: name of a style -> (number of groups, bytes) and (number of groups, ratio).
        plain: bytes of plain training, a dotted line; that of its throughput lies at 1.
    """
    with drawing(2, height=3.2) as (figure, panels):
        for axes, lines, level in zip(panels, (peaks, throughputs), (plain, 1.0), strict=True):
            axes.axhline(level, color=GREY, linestyle=":", linewidth=1, label="without privacy")
            for place, (name, line) in enumerate(lines.items()):
                mark = "o" if len(line) > 1 else "*"
                axes.plot(*zip(*line, strict=True), marker=mark, markersize=4, color=COLOURS[place], label=name)
            axes.set(xscale="log", xlabel="groups M")
            highest = max(level, *(y for line in lines.values() for _, y in line))
            axes.set_ylim(0, 1.06 * highest)
            axes.xaxis.set_major_formatter(lambda number, _: f"{number:g}")
            axes.xaxis.set_minor_formatter(lambda *_: "")
        panels[0].set_title(f"{title}: peak", loc="left", fontsize=9)
        panels[0].yaxis.set_major_formatter(_bytes)
        panels[1].set_title("throughput / plain", loc="right", fontsize=9)
        panels[1].legend(frameon=False, fontsize=8, loc="lower left")
        save(figure, path)


def _thinned(levels: Sequence[int]) -> tuple[list[float], list[int]]:
    step = max(1, len(levels) // _POINTS)
    heights = [max(levels[i : i + step]) for i in range(0, len(levels), step)]
    return [i / len(heights) for i in range(len(heights))], heights


def _bytes(size: float, _: object) -> str:
    from .sizes import show_bytes

    return show_bytes(size)


def save(figure, path: Path) -> None:
    ending = path.suffix.lower().removeprefix(".")
    if ending not in ("png", "svg"):
        raise ValueError(f"{path}: a figure is saved as .png or .svg")
    metadata = {"Date": None, "Creator": None} if ending == "svg" else {"Software": None}
    figure.savefig(path, format=ending, dpi=160, metadata=metadata)
