"""The section "Does the gap shrink with size?" of docs/reproduction.md, made of the results of ``benchmarks/sizes.py``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ..pages import environments
from ..results import Result
from ..scaled.summary import table
from .families import FAMILIES

NAME = "sizes"
ALL, LAYER, PARAM, PLANNED = "all-layer", "layer-wise", "param-wise", "planned"
STYLES = (ALL, LAYER, PARAM, PLANNED)
METRICS = {
    "loss": ("loss, nats", 3, 1.0),
    "accuracy": ("accuracy, points", 2, -1.0),
}  # title, decimals, sign of a worse style
MORE = {  # that some families have
    "auc": ("area under ROC, points", 2, -1.0),
    "loss_as_it_is": ("line as it is: loss, nats", 3, 1.0),
    "accuracy_as_it_is": ("line as it is: accuracy, points", 2, -1.0),
}
_KNOWN = METRICS | MORE
UNITS = {"loss": "nats of held-out loss", "accuracy": "points of accuracy"}

#: Student's t for 95 % on both sides, by degrees of freedom from 1.
_T = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)


@dataclass(frozen=True)
class Estimate:
    """Holds one figure a seed: their mean, with its standard error; ``decimals`` are for people."""

    values: tuple[float, ...]
    decimals: int = 3

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def error(self) -> float:
        """Return the standard error of the mean; nan of one seed."""
        n = len(self.values)
        return math.sqrt(sum((v - self.mean) ** 2 for v in self.values) / (n - 1) / n) if n > 1 else math.nan

    @property
    def half(self) -> float:
        """Return half the width of a 95 % interval by Student's t; infinite of one seed."""
        n = len(self.values)
        return _T[min(n - 1, len(_T)) - 1] * self.error if n > 1 else math.inf

    @property
    def sign(self) -> int:
        """Return 1 or -1 if the interval lies on that side of 0, else 0."""
        return 0 if abs(self.mean) <= self.half else int(math.copysign(1, self.mean))

    def __str__(self) -> str:
        if len(self.values) == 1:
            return f"{self.mean:+.{self.decimals}f}"
        told = f"{self.mean:+.{self.decimals}f} ± {self.error:.{self.decimals}f}"
        return f"**{told}**" if self.sign else told


class Runs:
    """Holds the runs of one family at one learning rate, by (size, style, seed)."""

    def __init__(self, results: Sequence[Result], name: str, lr: float) -> None:
        self.name, self.of, self.lr = name, FAMILIES[name], lr
        self.runs = {
            (r.cell["size"], r.cell["style"], r.cell["seed"]): r
            for r in results
            if r.cell["family"] == name and r.cell["lr"] == lr
        }

    def seeds(self, *cells: tuple[str, str]) -> list[int]:
        """Return the seeds that every one of these (size, style) has been run with."""
        every = sorted({seed for _, _, seed in self.runs})
        return [seed for seed in every if all((size, style, seed) in self.runs for size, style in cells)]

    def has(self, metric: str) -> bool:
        return all(metric in r.metrics for r in self.runs.values())

    def parameters(self, size: str) -> int | None:
        found = [r.settings["trained_parameters"] for (s, _, _), r in self.runs.items() if s == size]
        return found[0] if found else None

    def score(self, size: str, style: str, metric: str) -> Estimate | None:
        runs = [self.runs[size, style, seed].metrics for seed in self.seeds((size, style))]
        values = tuple(metrics[metric] for metrics in runs if metric in metrics)
        return Estimate(values, _KNOWN[metric][1]) if values else None

    def gap(self, size: str, style: str, metric: str, base: str = ALL) -> Estimate | None:
        """Return how much worse a style is than another, seed by seed: more loss, or less accuracy."""
        _, decimals, sign = _KNOWN[metric]
        seeds = self.seeds((size, style), (size, base))
        values = tuple(
            sign * (self.runs[size, style, s].metrics[metric] - self.runs[size, base, s].metrics[metric]) for s in seeds
        )
        return Estimate(values, decimals) if values else None

    def slope(self, style: str, metric: str) -> Estimate | None:
        """Return the slope of the gap over the logarithm of the trained parameters to base 2, by least squares in each seed."""
        sizes = [size for size in self.of.sizes if self.seeds((size, style), (size, ALL))]
        if len(sizes) < 2:
            return None
        seeds = self.seeds(*((size, s) for size in sizes for s in (style, ALL)))
        x = [math.log2(self.parameters(size) or 1) for size in sizes]
        middle = fmean(x)
        square = sum((v - middle) ** 2 for v in x)
        sign = _KNOWN[metric][2]
        slopes = []
        for seed in seeds:
            gaps = [
                sign * (self.runs[size, style, seed].metrics[metric] - self.runs[size, ALL, seed].metrics[metric])
                for size in sizes
            ]
            slopes.append(sum((v - middle) * gap for v, gap in zip(x, gaps, strict=True)) / square)
        return Estimate(tuple(slopes), _KNOWN[metric][1] + 1) if slopes else None


def values(results: Sequence[Result]) -> dict[str, str]:
    """Return what stands for @NAME@ in docs/reproduction/sizes.in.md."""
    main = [Runs(results, name, family.rates[0]) for name, family in FAMILIES.items()]
    both = [Runs(results, name, rate) for name, family in FAMILIES.items() for rate in family.rates]
    return {
        "SETTINGS": settings(main), "SCORES": scores(main), "GAPS": gaps(main), "SLOPES": slopes(both),
        "RATES": rates(results), "PLANNED": planned(main), "HARDWARE": environments(list(results)), "ANSWER": answer(both),
    }  # fmt: skip


def answer(main: Sequence[Runs]) -> str:
    """Write one sentence for each family: what the gap of param-wise groups does as the model grows, with its figures."""
    told = []
    for runs in main:
        found = [(metric, runs.slope(PARAM, metric)) for metric in METRICS if runs.has(metric)]
        parts = []
        for metric, slope in found:
            if slope is None or len(slope.values) < 2:
                continue
            d = slope.decimals
            parts.append(
                f"{slope.mean:+.{d}f} ± {slope.error:.{d}f} {UNITS[metric]} (95 % interval {slope.mean - slope.half:+.{d}f} to "
                f"{slope.mean + slope.half:+.{d}f}: {verdict(slope)})"
            )
        if parts:
            told.append(
                f"- **{runs.of.title}, learning rate {runs.lr:g}**: each time the trained parameters double, the gap of "
                f"param-wise groups to all-layer changes by {' and by '.join(parts)}."
            )
    return "\n".join(told)


def settings(main: Sequence[Runs]) -> str:
    """Say what each family is."""
    rows = []
    for runs in main:
        if not runs.runs:
            continue
        first, of = next(iter(runs.runs.values())), runs.of
        batch = f"{of.batch_size} expected, {of.steps} steps"
        noise = f"{first.privacy['noise_of_epsilon']:g} ({first.privacy['noise_multiplier']:.3f})"
        rows.append([of.title, f"{first.settings['records']:,}", batch, noise, f"{of.rates[0]:g} ({of.rates[1]:g})"])
    return table(
        ["family", "private records", "batches", "noise of epsilon (sigma)", "learning rate (second one)"], rows
    )


def scores(main: Sequence[Runs]) -> str:
    """Write held-out loss and accuracy of every cell."""
    rows = []
    for runs in main:
        for size in runs.of.sizes:
            for style in STYLES:
                loss, accuracy = (runs.score(size, style, metric) for metric in METRICS)
                if loss is None or accuracy is None:
                    continue
                found = next(r for (s, kind, _), r in runs.runs.items() if (s, kind) == (size, style))
                left = runs.score(size, style, "accuracy_as_it_is")
                rows.append([
                    size, f"{runs.parameters(size):,}", style, found.groups, _plain(loss), _plain(accuracy),
                    "" if left is None else _plain(left), len(loss.values),
                ])  # fmt: skip
    heads = [
        "size",
        "trained parameters",
        "style",
        "M",
        "loss, nats",
        "accuracy, %",
        "line as it is: accuracy, %",
        "seeds",
    ]
    return table(heads, rows)


def _plain(score: Estimate) -> str:
    spread = f" ± {score.error:.{score.decimals}f}" if len(score.values) > 1 else ""
    return f"{score.mean:.{score.decimals}f}{spread}"


def gaps(main: Sequence[Runs]) -> str:
    """Write how much worse more groups are than one, by size."""
    rows = []
    for runs in main:
        for size in runs.of.sizes:
            parts = [runs.gap(size, style, metric) for metric in METRICS for style in (LAYER, PARAM)]
            if any(parts):
                rows.append([size, f"{runs.parameters(size):,}", *(str(part or "not run") for part in parts)])
    heads = [f"{style}: {title}" for title, _, _ in METRICS.values() for style in (LAYER, PARAM)]
    return table(["size", "trained parameters", *heads], rows)


def verdict(slope: Estimate) -> str:
    """Say whether a gap grows or shrinks with size: what its slope's 95 % interval says."""
    return {1: "grows", -1: "shrinks", 0: "not decided"}[slope.sign]


def slopes(main: Sequence[Runs]) -> str:
    """Write how much a gap grows each time the trained parameters double, with the interval that decides."""
    rows = []
    for runs in main:
        for style in (LAYER, PARAM):
            for metric, (title, _, _) in _KNOWN.items():
                slope = runs.slope(style, metric) if runs.has(metric) else None
                if slope is None or len(slope.values) < 2:
                    continue
                d = slope.decimals
                interval = f"{slope.mean - slope.half:+.{d}f} to {slope.mean + slope.half:+.{d}f}"
                rows.append(
                    [
                        f"{runs.of.title}: {style}, rate {runs.lr:g}",
                        title,
                        len(slope.values),
                        str(slope),
                        interval,
                        verdict(slope),
                    ]
                )
    return table(["gap to all-layer", "in", "seeds", "growth a doubling", "95 % interval", "verdict"], rows)


def rates(results: Sequence[Result]) -> str:
    """Write the gap of param-wise groups at both learning rates, smallest and largest size."""
    rows = []
    for name, family in FAMILIES.items():
        for rate in family.rates:
            runs = Runs(results, name, rate)
            for size in (family.sizes[0], family.sizes[-1]):
                metrics = [metric for metric in ("loss", "accuracy", "auc") if runs.has(metric)]
                gap, base = (
                    runs.gap(size, PARAM, "loss"),
                    [runs.score(size, ALL, metric) for metric in ("loss", "accuracy")],
                )
                if gap is None or base[0] is None or base[1] is None:
                    continue
                parts = [str(runs.gap(size, PARAM, metric)) for metric in metrics]
                told = [_plain(score) for score in base if score is not None]
                rows.append([size, f"{rate:g}", *told, *parts, *[""] * (3 - len(parts)), len(gap.values)])
    heads = [
        "size",
        "learning rate",
        "all-layer: loss",
        "accuracy, %",
        "param-wise: more loss",
        "less accuracy",
        "less area",
    ]
    return table([*heads, "seeds"], rows)


def planned(main: Sequence[Runs]) -> str:
    """Write memory and accuracy of planned groups beside layer-wise and all-layer ones."""
    rows = []
    for runs in main:
        size = runs.of.planned
        for style in (ALL, PLANNED, LAYER):
            loss, accuracy = (runs.score(size, style, metric) for metric in METRICS)
            if loss is None or accuracy is None:
                continue
            found = next(r for (s, kind, _), r in runs.runs.items() if (s, kind) == (size, style))
            parts = [
                "" if style == base or (gap := runs.gap(size, style, metric, base)) is None else str(gap)
                for base in (ALL, LAYER) for metric in METRICS
            ]  # fmt: skip
            rows.append(
                [f"{size}: {style}", found.groups, _bytes(found.peak_bytes), _plain(accuracy), _plain(loss), *parts]
            )
    heads = [f"{'more loss' if m == 'loss' else 'less accuracy'} than {b}" for b in (ALL, LAYER) for m in METRICS]
    return table(["groups", "M", "predicted peak, bytes", "accuracy, %", "loss", *heads], rows)


def _bytes(peak: int | None) -> str:
    return "" if peak is None else f"{peak:,}"
