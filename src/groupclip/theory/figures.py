"""Figures of the bounds, as PNG or SVG by the ending of the file's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..memory.figures import save
from ..statement.plots import COLOURS, GREY, drawing
from .bound import Setting, dp_sgd, proof_last_line, sgd_from_squares


def draw_bounds(path: Path, setting: Setting, groups: Sequence[int], steps: tuple[int, int]) -> None:
    """Draw bounds over T between two numbers of steps: solid, valid at every T; dotted, the paper's last line; grey, SGD's."""
    points = sorted({round(t) for t in np.geomspace(*steps, 40)})
    settings = [replace(setting, steps=t) for t in points]
    with drawing(1, height=3.6) as (figure, (axes,)):
        for place, count in enumerate(groups):
            colour = COLOURS[place % len(COLOURS)]
            axes.plot(points, [dp_sgd(s, count).norm for s in settings], color=colour, label=f"M = {count}")
            axes.plot(points, [proof_last_line(s, count) for s in settings], color=colour, linestyle=":", linewidth=1)
        axes.plot(points, [sgd_from_squares(s) for s in settings], color=GREY, label="SGD, not private")
        over_steps(
            axes, setting, f"Gradient norm, bounded with probability {1 - setting.rho:g}; dotted: the paper's asymptote"
        )
        save(figure, path)


def over_steps(axes, setting: Setting, title: str) -> None:
    """Set axes of norms over T, with the bound that is true before the first step."""
    axes.set(title=title, xlabel="steps T", xscale="log", yscale="log")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    axes.axhline(setting.trivial, color=GREY, linestyle="--", linewidth=1)
    axes.annotate(
        "true at the start already",
        (0.99, setting.trivial),
        xycoords=("axes fraction", "data"),
        ha="right",
        va="bottom",
        color=GREY,
    )
