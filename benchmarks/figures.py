"""Figures of the documents, as PNG or SVG by the ending of the file's name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from groupclip.memory.figures import as_bytes, save
from groupclip.statement.plots import COLOURS, GREY, Curve, drawing
from groupclip.theory import Setting
from groupclip.theory.figures import over_steps


def draw_lines(path: Path, lines: Mapping[str, Curve], title: str, xlabel: str) -> None:
    """Draw bytes against a number: peak memory against the number of groups, or against a boundary."""
    with drawing(1, height=3.2) as (figure, (axes,)):
        for place, (name, line) in enumerate(lines.items()):
            axes.plot(
                *zip(*line, strict=True), marker="o", markersize=3, color=COLOURS[place % len(COLOURS)], label=name
            )
        axes.set(title=title, xlabel=xlabel)
        axes.yaxis.set_major_formatter(as_bytes)
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
        panels[0].yaxis.set_major_formatter(as_bytes)
        panels[1].set_title("throughput / plain", loc="right", fontsize=9)
        panels[1].legend(frameon=False, fontsize=8, loc="lower left")
        save(figure, path)


def draw_measured(path: Path, bounds: Mapping[int, Curve], measured: Mapping[int, Curve], setting: Setting) -> None:
    """Draw, by number of groups -> (T, norm), lines for bounds and dots for what was measured."""
    with drawing(1, height=3.6) as (figure, (axes,)):
        for place, (count, curve) in enumerate(bounds.items()):
            colour = COLOURS[place % len(COLOURS)]
            axes.plot(*zip(*curve, strict=True), color=colour, label=f"M = {count}, bound")
            axes.plot(
                *zip(*measured[count], strict=True), "o--", color=colour, markersize=3, label=f"M = {count}, measured"
            )
        over_steps(axes, setting, f"Least over t of the {1 - setting.rho:.0%} quantile of the gradient norm")
        save(figure, path)
