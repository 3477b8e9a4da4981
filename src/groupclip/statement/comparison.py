"""Write the page that compares runs: one file that needs nothing else, in the style of a run's own report.

It is as public as the runs are. What passes need is computed and measured on made-up records, so it tells nothing of theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from ..partition.groups import Partition
from ..privacy.figures import figure
from . import plots
from .html import page, scrolling, side_by_side, table, text_of
from .names import plain_name

MOST = len(plots.COLOURS)
"""As many runs as can be told apart in a figure."""
_LISTED = 24  # groups of a run that the page lists
_NONE = "-"


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """Holds what one run publishes, and what its passes need.

    Args:
        name: unlike that of any other run of the page.
        task: name of the data. model: name of the model.
        unit: whom the guarantee protects, in words. adjacency: of the guarantee.
        search: of settings, as whoever trained told: :class:`groupclip.statement.Told`.
        epsilon: None if none is claimed, and obstacles: why.
        thresholds: group -> R_m. noise_stds: group -> standard deviation of the noise on each coordinate of the group's sum.
        accuracy: share of held-out records that were right; None if it was never measured. chance: share of their commonest class.
        accuracies: (step, share) on the way. epsilons: (step, epsilon).
        peak_bytes: of the device, predicted. seconds: of a clipping pass for one record; None if it wasn't measured.
        settings: public ones.
    """

    name: str
    task: str
    model: str
    unit: str
    adjacency: str
    epsilon: float | None
    delta: float
    obstacles: Sequence[str] = ()
    search: str = ""
    steps: int
    expected_batch_size: float
    noise_multiplier: float
    partition: Partition
    thresholds: Mapping[str, float]
    noise_stds: Mapping[str, float]
    accuracy: float | None
    chance: float | None
    accuracies: Sequence[tuple[int, float]]
    epsilons: Sequence[tuple[int, float]]
    peak_bytes: int
    seconds: float | None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def groups(self) -> int:
        """M."""
        return len(self.partition)


def comparison(runs: Sequence[ComparedRun], environment: Mapping[str, str]) -> str:
    """Write the page as HTML: it has no script, fetches nothing, and holds its figures.

    Args:
        runs: in the order of the page.
        environment: of the process that measured passes.

    Raises:
        ValueError: no run, more than :data:`MOST`, or two of one name.
    """
    names = [run.name for run in runs]
    if not 1 <= len(runs) <= MOST:
        raise ValueError(f"{len(runs)} runs are given: 1 to {MOST} can be told apart in a figure")
    if len(set(names)) < len(names):
        raise ValueError(f"two runs have one name: {', '.join(names)}")
    title = f"{len(runs)} run{'s' * (len(runs) > 1)} compared"
    timed = any(run.seconds is not None for run in runs)
    parts = [
        f"<h1>{escape(title)}</h1>",
        _summary(runs, timed),
        "<h2>Privacy</h2>",
        _plans(runs),
        *(f"<p>{escape(words)}</p>" for words in _guarantees(runs)),
        *_figures(({run.name: run.epsilons for run in runs}, "Epsilon spent", "step", {})),
        "<h2>Accuracy</h2>",
        *_accuracy(runs),
        "<p>Held-out records are treated as public: the guarantee doesn't cover them, nor a choice of a run by them.</p>",
        "<h2>Memory and time over the groups</h2>",
        *_needs(runs),
        f"<p>{escape(_told_needs(runs, timed))}</p>",
        "<h2>Groups and thresholds</h2>",
        *_over_places(runs),
        *(part for run in runs for part in _groups(run)),
        "<h2>Settings</h2>",
        *_settings(runs),
        "<h2>Made with</h2>",
        table(environment),
    ]
    return page(title, "\n".join(parts))


def _summary(runs: Sequence[ComparedRun], timed: bool) -> str:
    """Lay the runs out in a table; what all have in common has no column."""
    columns: dict[str, list[str]] = {
        "data": [run.task for run in runs],
        "model": [run.model for run in runs],
        "groups": [run.partition.style for run in runs],
        "M": [f"{run.groups}" for run in runs],
        "epsilon": [_epsilon(run) for run in runs],
        "accuracy": [_share(run.accuracy) for run in runs],
        "commonest class": [_share(run.chance) for run in runs],
        "peak memory": [_quantity(run.peak_bytes, "B") for run in runs],
        "time of a record": [_quantity(run.seconds, "s") for run in runs],
    }
    idle = {name for name in ("data", "model") if len(set(columns[name])) == 1} | (set() if timed else {"time of a record"})
    return _columns(runs, {name: cells for name, cells in columns.items() if name not in idle}, "runs")


def _plans(runs: Sequence[ComparedRun]) -> str:
    return _columns(
        runs,
        {
            "epsilon": [_epsilon(run) for run in runs],
            "delta": [f"{run.delta:g}" for run in runs],
            "steps charged": [f"{run.steps:,}" for run in runs],
            "expected batch size": [f"{run.expected_batch_size:g}" for run in runs],
            "noise multiplier": [f"{run.noise_multiplier:.4g}" for run in runs],
        },
        "plans",
    )


def _columns(runs: Sequence[ComparedRun], columns: Mapping[str, Sequence[str]], meaning: str) -> str:
    rows = [[run.name, *(cells[i] for cells in columns.values())] for i, run in enumerate(runs)]
    return _numbers(["run", *columns], rows, meaning)


def _guarantees(runs: Sequence[ComparedRun]) -> list[str]:
    """Say whom each run protects, what those without a claim lack, and what all of them spend together."""
    told = []
    for run in runs:
        if run.epsilon is None:
            told.append(f"{run.name} claims no epsilon, so it is NOT PRIVATE: {'; '.join(run.obstacles)}.")
    kinds = {(run.unit, run.adjacency) for run in runs}
    if len(kinds) == 1:
        unit, adjacency = next(iter(kinds))
        told.append(f"Each figure protects {unit}. Neighbouring data sets: {adjacency}.")
    else:
        told += [f"The figure of {run.name} protects {run.unit}. Neighbouring data sets: {run.adjacency}." for run in runs]
    told += _denied(runs)
    claimed = [run.epsilon for run in runs if run.epsilon is not None]
    if len(runs) > 1 and len(claimed) == len(runs) and len(kinds) == 1:
        together, delta = math.fsum(claimed), math.fsum(run.delta for run in runs)
        told.append(
            "Each figure counts its own run alone. Runs on the same records add up: if all of these are, then together they spend "
            f"epsilon {figure(together)} at delta {delta:.3g} at the most, and not the least of the figures; so does the choice of "
            "one of them by its accuracy. gc.Budget and gc.calibrate_search compose several runs at a lower cost."
        )
    return told


def _denied(runs: Sequence[ComparedRun]) -> list[str]:
    """Say where a run tells of no search, though others on its data stand beside it."""
    named = [run.name for run in runs if run.search == "none" and sum(run.task == other.task for other in runs) > 1]
    says = "says" if len(named) == 1 else "say"
    if not named:
        return []
    return [f"{' and '.join(named)} {says} that no settings were searched for, and this page has other runs on data of that name: "
            "if one run was chosen by comparing them, that was a search."]  # fmt: skip


def _accuracy(runs: Sequence[ComparedRun]) -> list[str]:
    known = [run for run in runs if run.accuracy is not None]
    if not known:
        return ["<p>None of the runs was measured on held-out records.</p>"]
    # of all runs, so that each has the colour that it has in the other figures
    last = {r.name: [] if r.accuracy is None else [(float(r.groups), r.accuracy)] for r in runs}
    against = {r.name: [] if r.accuracy is None else [(float(r.peak_bytes), r.accuracy)] for r in runs}
    over = {run.name: run.accuracies for run in runs}
    marks: dict[str, Any] = {"unit": "%", "points": True}
    return _figures(
        (last, "Accuracy over the groups", "groups M", marks | {"joined": _one_curve(known)}),
        (against, "Accuracy against peak memory", "peak memory", marks | {"x_unit": "B"}),
        (over, "Accuracy on the way", "step", {"unit": "%"}),
    )


def _needs(runs: Sequence[ComparedRun]) -> list[str]:
    memory = {run.name: [(float(run.groups), float(run.peak_bytes))] for run in runs}
    time = {run.name: [(float(run.groups), run.seconds)] for run in runs if run.seconds is not None}
    marks: dict[str, Any] = {"points": True}
    return _figures(
        (memory, "Peak memory over the groups", "groups M", marks | {"unit": "B", "joined": _one_curve(runs)}),
        (time, "Time of a record over the groups", "groups M", marks | {"unit": "s", "joined": _one_curve(runs)}),
    )


def _told_needs(runs: Sequence[ComparedRun], timed: bool) -> str:
    words = (
        "Peak memory is predicted, not measured: parameters, the optimizer's state, the noise that bands keep, and the most that "
        "a step holds beside them, for a full micro-batch of each run."
    )
    if timed:
        words += (
            " The time of a record is that of a forward and a backward pass with clipping over a full micro-batch, divided by its "
            "records. It was measured on the machine below, all runs in turns, on made-up records: the times of a run's own "
            "steps would tell how many records were drawn. Noise and the optimizer's step, once a batch, aren't in it."
        )
    if any(run.settings.get("views", 1) != 1 for run in runs):
        words += " Each view of a record counts as a row of the micro-batch."
    return words


def _one_curve(runs: Sequence[ComparedRun]) -> bool:
    """Return whether data and model are the same and numbers of groups aren't, so that a line through the runs means something."""
    same = len({(run.task, run.model) for run in runs}) == 1
    return same and len(runs) > 2 and len({run.groups for run in runs}) == len(runs)


def _over_places(runs: Sequence[ComparedRun]) -> list[str]:
    """Draw thresholds and noise over the groups' places, if any run has several groups."""
    if all(run.groups == 1 for run in runs):
        return []
    thresholds = {r.name: [(p, r.thresholds[g]) for p, g in enumerate(r.partition, 1)] for r in runs}
    noise = {
        r.name: [(p, r.noise_stds[g] / r.expected_batch_size) for p, g in enumerate(r.partition, 1)] for r in runs
    }
    return _figures(
        (thresholds, "Clipping threshold R_m", "place of the group, from the input on", {}),
        (noise, "Noise over the batch size", "place of the group, from the input on", {}),
    )


def _groups(run: ComparedRun) -> list[str]:
    listed = list(run.partition)[:_LISTED]
    rows = [
        [group, f"{run.partition.sizes[group]:,}", f"{run.thresholds[group]:.6g}", f"{run.noise_stds[group]:.6g}",
         f"{run.noise_stds[group] / run.expected_batch_size:.3g}"]
        for group in listed
    ]  # fmt: skip
    head = ["group", "coordinates", "threshold R_m", "noise", "noise / batch size"]
    told = [f"<h3>{escape(run.name)}</h3>", _numbers(head, rows, f"groups of {run.name}")]
    if len(listed) < run.groups:
        told.append(f"<p>These are the first {len(listed)} of {run.groups} groups; the run's own report lists all.</p>")
    return told


def _settings(runs: Sequence[ComparedRun]) -> list[str]:
    """List what differs, a column a run, and below it what all have in common."""
    keys = list(dict.fromkeys(key for run in runs for key in run.settings))
    absent = object()
    differ = [k for k in keys if any(run.settings.get(k, absent) != runs[0].settings.get(k, absent) for run in runs)]
    told = []
    if differ:
        rows = [
            [plain_name(k), *(text_of(r.settings[k], options=k.endswith("_options")) if k in r.settings else _NONE for r in runs)]
            for k in differ
        ]
        told += ["<h3>Different</h3>", _numbers(["setting", *(run.name for run in runs)], rows, "settings that differ")]
    common = {k: runs[0].settings[k] for k in keys if k not in differ}
    return [*told, "<h3>The same in all</h3>" if len(runs) > 1 else "", table(common)]


def _figures(*asked: tuple[Mapping[str, Any], str, str, Mapping[str, Any]]) -> list[str]:
    """Draw what has points: (run -> points, title, horizontal axis, options)."""
    drawn = [
        (plots.of_runs(curves, title, x, **options), title) for curves, title, x, options in asked if any(curves.values())
    ]
    return side_by_side(*drawn) if drawn else []


def _numbers(head: Sequence[str], rows: Sequence[Sequence[str]], meaning: str) -> str:
    line = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return scrolling(f'<table class="numbers"><tr>{line}</tr>{body}</table>', escape(meaning))


def _epsilon(run: ComparedRun) -> str:
    return "none: NOT PRIVATE" if run.epsilon is None else figure(run.epsilon)


def _share(value: float | None) -> str:
    return _NONE if value is None else f"{value:.1%}"


def _quantity(value: float | None, unit: str) -> str:
    return _NONE if value is None else plots.in_units(value, unit)
