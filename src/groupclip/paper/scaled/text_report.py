"""What docs/reproduction says of the small text experiments: tables, and a plot as SVG text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...statement.plots import COLOURS, GREY, drawing, svg
from ..results import Result
from .summary import Difference, Score, Scores, table

STYLES = ("all-layer", "block-wise", "layer-wise", "param-wise")


class Report:
    """The results of one experiment. Cells that weren't run are left out of tables, or said to be missing.

    Args:
        results: of any cells of the experiment.
        data: the cells that tables and the plot are of.
        metrics: name -> title with its unit. The first two are plotted.
    """

    def __init__(self, results: Sequence[Result], data: str, metrics: Mapping[str, str]) -> None:
        self.results, self.data, self.metrics = list(results), data, dict(metrics)
        self.scores = {name: Scores(self.results, name) for name in metrics}
        self.models = sorted({r.cell["model"] for r in self.results if r.cell["data"] == data})
        self.epsilons = sorted({r.cell["epsilon"] for r in self.results if r.cell["epsilon"] is not None})
        private = [r for r in self.results if r.cell["epsilon"] is not None and r.cell["data"] == data]
        self.deviations = {name: Scores(private, name).pooled() for name in metrics}
        self.digits = {name: 3 if deviation < 0.05 else 2 for name, deviation in self.deviations.items()}

    def values(self) -> dict[str, str]:
        """Placeholder -> text."""
        return {
            "OTHERS": self.others(),
            "BEFORE": self.before(),
            "RUNS": str(len(self.results)),
            "SECONDS": f"{sum(r.seconds for r in self.results):,.0f}",
            **{f"TABLE_{name}": self.metric(name) for name in self.metrics},
            **{f"GAPS_{name}": self.gaps(name) for name in self.metrics},
            **{f"DEVIATION_{name}": f"{self.deviations[name]:.{self.digits[name]}f}" for name in self.metrics},
        }

    def cell(self, model: str, epsilon: float | None, style: str, clip: str = "automatic") -> dict[str, Any]:
        """Write the cell of one score; without privacy it has no style and no clip function."""
        words = {"clipping": style, "clip": clip} if epsilon is not None else {"clipping": "", "clip": ""}
        return {"model": model, "data": self.data, "epsilon": epsilon, **words}

    def metric(self, name: str) -> str:
        """Return a row a model and style, a column an epsilon."""
        scores, rows = self.scores[name], []
        for model in self.models:
            plain = scores.of(**self.cell(model, None, ""))
            rows.append([model, "without privacy", "-", *([_say(plain, self.digits[name])] * len(self.epsilons))])
            for style in STYLES:
                cells = [self.cell(model, epsilon, style) for epsilon in self.epsilons]
                found = [scores.of(**cell) for cell in cells]
                if any(found):
                    groups = next(scores.number_of_groups(**c) for c, s in zip(cells, found, strict=True) if s)
                    rows.append([model, style, groups, *(_say(score, self.digits[name]) for score in found)])
        return table(["model", "style", "M", *(f"epsilon {e:g}" for e in self.epsilons)], rows)

    def gaps(self, name: str) -> str:
        """Differences between styles in one metric: a row a model and style, a column an epsilon."""
        rows = []
        for model in self.models:
            for style in STYLES[1:]:
                found = [self.gap(name, model, epsilon, style) for epsilon in self.epsilons]
                if any(found):
                    rows.append(
                        [
                            model,
                            f"{style} minus all-layer",
                            *(_mark(difference, self.digits[name]) for difference in found),
                        ]
                    )
        return table(["model", "styles", *(f"epsilon {e:g}" for e in self.epsilons)], rows)

    def gap(self, name: str, model: str, epsilon: float, style: str) -> Difference | None:
        """Return the metric of the style less that of one group."""
        first, second = self.cell(model, epsilon, style), self.cell(model, epsilon, "all-layer")
        return self.scores[name].difference(first, second, self.deviations[name])

    def others(self) -> str:
        """Return the cells that tables leave out: a row a cell, a column a metric."""
        shown = {(r.cell["data"], r.cell["clip"]) for r in self.results} - {(self.data, "automatic"), (self.data, "")}
        cells = {
            tuple(sorted(((k, v) for k, v in r.cell.items() if k != "seed"), key=lambda pair: pair[0])): r.groups
            for r in self.results
            if (r.cell["data"], r.cell["clip"]) in shown
        }
        rows = [
            [c["model"], c["data"], c["clipping"], c["clip"], groups, f"{c['epsilon']:g}",
             *(_say(scores.of(**c), self.digits[name]) for name, scores in self.scores.items())]
            for key, groups in sorted(cells.items(), key=str) for c in [dict(key)]
        ]  # fmt: skip
        if not rows:
            return "None."
        return table(["model", "data", "style", "clip", "M", "epsilon", *self.metrics.values()], rows)

    def before(self) -> str:
        """Return scores before any private record was seen: a row a model."""
        facts = {r.cell["model"]: r.settings["workload"]["before"] for r in self.results}
        rows = [[model, *(f"{facts[model][name]:.2f}" for name in self.metrics)] for model in self.models]
        return table(["model", *self.metrics.values()], rows)

    def over_groups(self) -> str:
        """Return the first two metrics over M: a line an epsilon; bars are standard deviations over repetitions."""
        panels = [(model, name) for model in self.models for name in list(self.metrics)[:2]]
        with drawing(len(panels), height=2.9) as (figure, drawn):
            for axes, (model, name) in zip(drawn, panels, strict=True):
                self._panel(axes, model, name)
            drawn[-1].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
            return svg(figure)

    def _panel(self, axes: Any, model: str, name: str) -> None:
        scores = self.scores[name]
        for epsilon, colour in zip(reversed(self.epsilons), COLOURS, strict=False):
            cells = [self.cell(model, epsilon, style) for style in STYLES]
            found = [(scores.number_of_groups(**c), s) for c in cells if (s := scores.of(**c)) is not None]
            axes.errorbar(
                [groups for groups, _ in found], [s.mean for _, s in found],
                yerr=[s.deviation if len(s.values) > 1 else 0.0 for _, s in found],
                color=colour, marker="o", markersize=4, linewidth=1, capsize=2, label=f"epsilon {epsilon:g}",
            )  # fmt: skip
        plain = scores.of(**self.cell(model, None, ""))
        if plain is not None:
            axes.axhline(plain.mean, color=GREY, linestyle=":", linewidth=1, label="without privacy")
        axes.set(title=model, xlabel="groups M", xscale="log", ylabel=self.metrics[name])


def _say(score: Score | None, digits: int) -> str:
    """Return mean and standard deviation over repetitions."""
    if score is None:
        return "not run"
    if len(score.values) == 1:
        return f"{score.mean:.{digits}f} (one run)"
    return f"{score.mean:.{digits}f} ± {score.deviation:.{digits}f}"


def _mark(difference: Difference | None, digits: int) -> str:
    """Bold where it is more than two standard errors from 0."""
    if difference is None:
        return "not run"
    if math.isnan(difference.error):
        return f"{difference.mean:+.{digits}f} (one run each)"
    text = f"{difference.mean:+.{digits}f} ± {difference.error:.{digits}f}"
    return f"**{text}**" if difference.clear else text
