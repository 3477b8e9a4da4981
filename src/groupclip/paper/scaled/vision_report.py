"""What docs/reproduction says of the small image experiment: its tables, and its two plots as SVG text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...memory.sizes import show_bytes
from ...statement.plots import COLOURS, GREY, drawing, svg
from ..results import Result
from .summary import Difference, Scores, table

DATA = "cifar10"
UNIFORM = ("all-layer", "uniform:2", "uniform:3", "block-wise", "layer-wise", "param-wise")
NON_UNIFORM = ("boundaries:5", "planned:3")
EQUAL_MEMORY = (("boundaries:5", "block-wise"), ("planned:3", "layer-wise"), ("planned:3", "param-wise"))


class Report:
    """The results of the experiment. Cells that weren't run are left out of tables, or said to be missing."""

    def __init__(self, results: Sequence[Result]) -> None:
        self.results = list(results)
        self.scores = Scores(self.results, "accuracy")
        self.sizes = sorted({r.cell["model"] for r in self.results}, key=lambda name: int(name.rpartition("-")[2]))
        self.epsilons = sorted({r.cell["epsilon"] for r in self.results if r.cell["epsilon"] is not None})
        self.deviation = self.scores.pooled(lambda cell: cell["epsilon"] is not None)
        self.peaks = {(r.cell["model"], r.cell["clipping"]): r.peak_bytes for r in self.results}

    def values(self) -> dict[str, str]:
        """Placeholder -> text."""
        plain = [r for r in self.results if r.cell["epsilon"] is None]
        return {
            "MODELS": self.models(),
            "GAPS": self.gaps(),
            "CHANGES": self.changes(),
            "EQUAL": self.equal_memory(),
            "ABADI": self.abadi(),
            "DEVIATION": f"{self.deviation:.2f}",
            "RUNS": str(len(self.results)),
            "PLAIN_RUNS": str(len(plain)),
            "SECONDS": f"{sum(r.seconds for r in self.results):,.0f}",
            **{f"EPSILON_{e:g}": self.accuracies(e) for e in self.epsilons},
        }

    def cell(self, size: str, epsilon: float | None, style: str, clip: str = "automatic") -> dict[str, Any]:
        """Write the cell of one score; without privacy it has no style and no clip function."""
        private = epsilon is not None
        words = {"clipping": style if private else "", "clip": clip if private else ""}
        return {"model": size, "data": DATA, "epsilon": epsilon, **words}

    def models(self) -> str:
        """Return a row a size."""
        facts = {r.cell["model"]: r.settings["workload"] for r in self.results}
        rows = [
            [size, f"{facts[size]['parameters']:,}", f"{facts[size]['public_accuracy']:.1f}",
             self.scores.of(**self.cell(size, None, "")) or "not run"]
            for size in self.sizes
        ]  # fmt: skip
        return table(["model", "parameters", "CIFAR-100 after pretraining, %", "CIFAR-10 without privacy, %"], rows)

    def accuracies(self, epsilon: float) -> str:
        """Return a row a style, a column a size."""
        rows = []
        for style in (*UNIFORM, *NON_UNIFORM):
            cells = [self.cell(size, epsilon, style) for size in self.sizes]
            found = [self.scores.of(**cell) for cell in cells]
            if any(found):
                groups = next(self.scores.number_of_groups(**c) for c, s in zip(cells, found, strict=True) if s)
                rows.append([style, groups, *(score or "not run" for score in found)])
        return table(["style", "M", *(f"{size}, %" for size in self.sizes)], rows)

    def gap(self, size: str, epsilon: float, style: str) -> Difference | None:
        """Return how much better one group is than the style's."""
        return self.scores.difference(
            self.cell(size, epsilon, "all-layer"), self.cell(size, epsilon, style), self.deviation
        )

    def gaps(self) -> str:
        """Return a row for each size and epsilon, a column for each style that was run at every epsilon."""
        styles = [s for s in UNIFORM[1:] if all(self.gap(self.sizes[0], e, s) for e in self.epsilons)]
        rows = [
            [size, f"{epsilon:g}", *(_mark(self.gap(size, epsilon, style)) for style in styles)]
            for size in self.sizes
            for epsilon in self.epsilons
        ]
        return table(["model", "epsilon", *(f"all-layer minus {style}" for style in styles)], rows)

    def changes(self) -> str:
        """Return whether gaps shrink: from the smallest to the largest model, and from the smallest to the largest epsilon."""
        low, high = self.epsilons[0], self.epsilons[-1]
        small, large = self.sizes[0], self.sizes[-1]
        rows = []
        for style in UNIFORM[1:]:
            by_size = [(e, [(1.0, small, e), (-1.0, large, e)]) for e in self.epsilons]
            every = [(sign / len(self.sizes), size, e) for size in self.sizes for sign, e in ((1.0, low), (-1.0, high))]
            named = [(f"{small} to {large}, epsilon {e:g}", terms) for e, terms in by_size]
            named += [(f"epsilon {low:g} to {high:g}, mean of the models", every)]
            for name, terms in named:
                found = self._of_gaps(style, terms)
                if found is not None:
                    rows.append([f"all-layer minus {style}", name, _mark(found)])
        return table(["gap", "from .. to", "shrinks by"], rows)

    def _of_gaps(self, style: str, terms: Sequence[tuple[float, str, float]]) -> Difference | None:
        """Sum of weight * gap(size, epsilon)."""
        parts = [
            (sign * weight, self.cell(size, epsilon, s))
            for weight, size, epsilon in terms
            for sign, s in ((1.0, "all-layer"), (-1.0, style))
        ]
        return self.scores.contrast(parts, self.deviation)

    def equal_memory(self) -> str:
        """Few groups of unequal size against many: the same peak, another accuracy."""
        rows = []
        for few, many in EQUAL_MEMORY:
            for size in self.sizes:
                epsilon = self.epsilons[0]
                first, second = self.cell(size, epsilon, few), self.cell(size, epsilon, many)
                difference = self.scores.difference(first, second, self.deviation)
                if difference is not None:
                    rows.append(
                        [f"{few} - {many}", size, show_bytes(self.peaks[size, few] or 0), show_bytes(self.peaks[size, many] or 0),
                         self.scores.of(**first), self.scores.of(**second), _mark(difference)]
                    )  # fmt: skip
            terms = [(sign / len(self.sizes), self.cell(size, self.epsilons[0], style))
                     for size in self.sizes for sign, style in ((1.0, few), (-1.0, many))]  # fmt: skip
            mean = self.scores.contrast(terms, self.deviation)
            if mean is not None:
                rows.append([f"{few} - {many}", "mean of the models", "", "", "", "", _mark(mean)])
        return table(["styles", "model", "peak of first", "of second", "first, %", "second, %", "difference"], rows)

    def abadi(self) -> str:
        """Return the two clip functions on the same cells."""
        rows = []
        for size in self.sizes:
            for epsilon in self.epsilons:
                for style in UNIFORM:
                    automatic, abadi = (self.cell(size, epsilon, style, clip) for clip in ("automatic", "abadi"))
                    difference = self.scores.difference(automatic, abadi, self.deviation)
                    if difference is not None:
                        both = [self.scores.of(**automatic), self.scores.of(**abadi)]
                        rows.append([size, f"{epsilon:g}", style, *both, _mark(difference)])
        return table(["model", "epsilon", "style", "automatic, %", "Abadi, R = 1, %", "difference"], rows)

    def over_groups(self) -> str:
        """Return accuracy over M: a panel a size, a line an epsilon; bars are standard deviations over seeds."""
        with drawing(len(self.sizes), height=2.9) as (figure, panels):
            for axes, size in zip(panels, self.sizes, strict=True):
                for epsilon, colour in zip(reversed(self.epsilons), COLOURS, strict=False):
                    points = self._points(size, epsilon, UNIFORM)
                    x = [self.scores.number_of_groups(**self.cell(size, epsilon, style)) for style in points]
                    _bars(axes, x, list(points.values()), colour, f"epsilon {epsilon:g}", line="-")
                plain = self.scores.of(**self.cell(size, None, ""))
                if plain is not None:
                    axes.axhline(plain.mean, color=GREY, linestyle=":", linewidth=1, label="without privacy")
                axes.set(title=size, xlabel="groups M", xscale="log")
            panels[0].set_ylabel("accuracy, %")
            panels[-1].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
            return svg(figure)

    def over_memory(self) -> str:
        """Return accuracy over predicted peak at the smallest epsilon: uniform groups on a line, non-uniform ones beside it."""
        epsilon = self.epsilons[0]
        with drawing(len(self.sizes), height=2.9) as (figure, panels):
            for axes, size in zip(panels, self.sizes, strict=True):
                for styles, colour, label, line, above in (
                    (UNIFORM, COLOURS[0], "uniform", "-", 3), (NON_UNIFORM, COLOURS[1], "non-uniform", "none", -7),
                ):  # fmt: skip
                    points = self._points(size, epsilon, styles)
                    x = [(self.peaks[size, style] or math.nan) / 2**20 for style in points]
                    _bars(axes, x, list(points.values()), colour, label, line=line)
                    for place, style in zip(x, points, strict=True):
                        at = (place, points[style][0])
                        axes.annotate(
                            style, at, textcoords="offset points", xytext=(3, above), fontsize=5.5, color=colour
                        )
                axes.set(title=f"{size}, epsilon {epsilon:g}", xlabel="predicted peak, MiB")
                axes.margins(x=0.25)
            panels[0].set_ylabel("accuracy, %")
            panels[-1].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
            return svg(figure)

    def _points(self, size: str, epsilon: float, styles: Sequence[str]) -> Mapping[str, tuple[float, float]]:
        """Style -> (mean, deviation or 0), of those that were run."""
        scores = {style: self.scores.of(**self.cell(size, epsilon, style)) for style in styles}
        return {s: (v.mean, v.deviation if len(v.values) > 1 else 0.0) for s, v in scores.items() if v is not None}


def _bars(
    axes: Any, x: Sequence[float], points: Sequence[tuple[float, float]], colour: str, label: str, *, line: str
) -> None:
    if points:
        y, deviations = zip(*points, strict=True)
        axes.errorbar(
            x, y, yerr=deviations, color=colour, marker="o", markersize=4, linestyle=line, linewidth=1, capsize=2, label=label
        )  # fmt: skip


def _mark(difference: Difference | None) -> str:
    """Bold where it is clear."""
    if difference is None:
        return "not run"
    return f"**{difference}**" if difference.clear else str(difference)
