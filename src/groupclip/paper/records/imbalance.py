"""A rare class under privacy: which runs there are, and the table of docs/records.md that is made of their results."""

from __future__ import annotations

from collections.abc import Sequence

from ..results import Result
from ..scaled.summary import Score, table

NAME = "imbalance"
RARE, KEPT = 8, 25  # bags of Fashion-MNIST; so many of the first 5,000 images' bags are trained on
EPSILONS = (1.0, 3.0, 8.0)
STYLES = ("all-layer", "layer-wise")
CLIPS = (
    ("automatic", 1.0),
    ("automatic", 16.0),
    ("abadi", 1.0),
    ("abadi", 16.0),
)  # clip function and weight of the rare class


def rows_of(results: Sequence[Result]) -> str:
    """Return the table: recall of the rare class, and in brackets the mean over all classes, by epsilon."""
    lines = []
    for clipping in (*STYLES, "none"):
        for clip, weight in CLIPS if clipping != "none" else (("none", 1.0), ("none", 16.0)):
            key = (clipping, clip, weight)
            of = [r for r in results if (r.cell["clipping"], r.cell["clip"], r.cell["weight"]) == key]
            columns = [_told([r for r in of if r.cell["epsilon"] == epsilon]) for epsilon in (*EPSILONS, None)]
            name = "no clipping" if clipping == "none" else clipping
            lines.append([name, clip if clip != "none" else "", f"{weight:g}", *columns])
    heads = [*(f"epsilon {epsilon:g}" for epsilon in EPSILONS), "no privacy"]
    return table(["style", "clip function", "weight", *heads], lines)


def _told(results: Sequence[Result]) -> str:
    if not results:
        return ""
    rare, mean = (Score(tuple(r.metrics[name] for r in results)) for name in ("rare", "mean"))
    spread = f" ± {rare.deviation:.0f}" if len(results) > 1 else ""
    return f"{rare.mean:.0f}{spread} ({mean.mean:.0f})"
