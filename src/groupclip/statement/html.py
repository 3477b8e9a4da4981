"""Write ``report.html``: what a run did, in one file that needs nothing else. It is as public as the release.

Everything in it is planned, noisy, or measured on held-out records. It leaves out the times of steps, because a step takes longer
the more samples it drew.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ..partition.groups import Partition
from ..privacy.figures import figure
from . import plots
from .names import plain_name


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """Holds the facts of one run.

    Args:
        statement: (heading, words) of the guarantee.
        rows: the rows of ``metrics.jsonl``.
        lost: (first, last) of charged steps whose updates a crash lost.
        noise_stds: group -> standard deviation of the noise on every coordinate of the SUM of its clipped gradients, before the
            division by the expected batch size.
        test_accuracy: None if it was never measured.
        chance: share of the commonest class of the held-out records.
        findings: sentences about a run that learnt little.
        pretraining: facts about public pretraining; empty if there was none.
    """

    title: str
    statement: Sequence[tuple[str, str]]
    epsilon: float
    delta: float
    planned_epsilon: float
    steps: int
    updates: int
    test_accuracy: float | None
    chance: float
    partition: Partition
    thresholds: Mapping[str, float]
    noise_multiplier: float
    noise_stds: Mapping[str, float]
    expected_batch_size: float
    rows: Sequence[Mapping[str, Any]]
    lost: Sequence[tuple[int, int]]
    data: Mapping[str, Any]
    pretraining: Mapping[str, Any]
    settings: Mapping[str, Any]
    environment: Mapping[str, str]
    findings: Sequence[str] = ()


def html_report(run: RunReport) -> str:
    """Write the report as HTML: it has no script, fetches nothing, and holds its figures."""
    accuracy = "not measured" if run.test_accuracy is None else f"{run.test_accuracy:.1%}"
    parts = [
        f"<h1>{escape(run.title)}</h1>",
        '<div class="figures">',
        headline(accuracy, "accuracy on held-out records"),
        *([] if run.test_accuracy is None else [headline(f"{run.chance:.1%}", "by always naming the commonest class")]),
        headline(figure(run.epsilon), f"epsilon at delta {run.delta:g}"),
        headline(str(run.steps), "steps charged"),
        headline(str(len(run.partition)), f"groups ({run.partition.style})"),
        "</div>",
        *(f"<p><b>{escape(finding)}</b></p>" for finding in run.findings),
        "<h2>Privacy</h2>",
        *(f"<p><b>{escape(heading)}.</b> {escape(words)}</p>" for heading, words in run.statement),
        *_lost(run),
        "<h2>Progress</h2>",
        *_course(run),
        "<p>Held-out records are treated as public: the guarantee doesn't cover them. They were evaluated at steps fixed "
        "beforehand. The accuracy of the same model without privacy would tell of the training records without noise, so this "
        "report leaves it out: <code>groupclip train --config run.yaml --no-privacy</code> trains such a baseline, without any "
        "guarantee.</p>",
        *_norms(run),
        "<h2>Groups</h2>",
        *_bars(run),
        _groups(run),
        f"<p>The noise multiplier is {run.noise_multiplier:.6g}. The table gives the standard deviation of the noise on each "
        "coordinate of the group's summed gradient, and after the division by the expected batch size "
        f"{run.expected_batch_size:g}.</p>",
        "<h2>Data</h2>",
        table(run.data),
        *(["<h2>Public pretraining</h2>", table(run.pretraining)] if run.pretraining else []),
        "<h2>Settings</h2>",
        table(run.settings),
        "<h2>Made with</h2>",
        table(run.environment),
        "<p>This report leaves out what no noise covers: losses and gradient norms of samples, sizes of batches, and how long "
        "steps took.</p>",
    ]
    body = "\n".join(parts)
    return page(run.title, body)


def page(title: str, body: str) -> str:
    """Make a whole HTML page; ``body`` is HTML, ``title`` is plain text."""
    return _PAGE.format(title=escape(title), body=body)


def _course(run: RunReport) -> list[str]:
    kept = [row for row in run.rows if not _is_lost(run, row["step"])]
    accuracy = [(row["step"], row["test_accuracy"]) for row in kept if "test_accuracy" in row]
    epsilon = [(row["step"], row["epsilon"]) for row in run.rows]
    return side_by_side(
        (plots.accuracy(accuracy, {"guessing": run.chance}), "accuracy on held-out records over the steps"),
        (plots.epsilon(epsilon, run.planned_epsilon), "epsilon spent over the steps"),
    )


def _norms(run: RunReport) -> list[str]:
    """Draw the groups whose noisy gradient is larger than its noise; noise alone needs no figure."""
    curves = {
        group: [
            (row["step"], row["noisy_gradient_norm"][group])
            for row in run.rows
            if row["noisy_gradient_norm"].get(group) is not None
        ]
        for group in run.partition
    }
    sizes = run.partition.sizes
    noise = {g: run.noise_stds[g] * math.sqrt(n) / run.expected_batch_size for g, n in sizes.items()}
    above = {g: _above_noise([norm for _, norm in curve], noise[g], sizes[g]) for g, curve in curves.items()}
    seen = sorted((g for g, times in above.items() if times > 0), key=lambda g: -above[g])
    shown = {group: curves[group] for group in run.partition if group in seen[: len(plots.COLOURS)]}
    told = []
    if shown:
        told += side_by_side((plots.noisy_norms(shown, noise), "norm of the noisy gradient over the steps"))
    if len(shown) < len(seen):
        told.append(f"<p>The figure shows the {len(shown)} of {len(seen)} groups that stand out most.</p>")
    hidden = len(run.partition) - len(seen)
    if hidden and any(curves.values()):
        whose = "every group" if not shown else f"the other {hidden} groups" if hidden > 1 else "the other group"
        told.append(f"<p>The noisy gradient of {whose} is about as large as the noise alone, so the figure leaves it out.</p>")
    return told


def _above_noise(norms: Sequence[float], noise: float, size: int) -> float:
    """Divide the mean square of the norms by that of noise alone, and subtract 1; 0 if no eye and no test would see it."""
    if not norms or noise == 0:
        return 0.0
    excess = math.fsum(norm * norm for norm in norms) / len(norms) / noise**2 - 1
    chance = math.sqrt(2 / (size * len(norms)))  # its standard deviation where there is noise alone
    return excess if excess >= max(0.1, 4 * chance) else 0.0


def _bars(run: RunReport) -> list[str]:
    """Draw sizes and thresholds if they differ between groups; the table has all of them."""
    asked = (
        (run.partition.sizes, "Coordinates in the group", "size of each group"),
        (run.thresholds, "Clipping threshold R_m", "threshold of each group"),
    )
    figures = [(plots.bars(v, title), meaning) for v, title, meaning in asked if len(set(v.values())) > 1]
    return side_by_side(*figures) if figures else []


def told_lost(lost: Sequence[tuple[int, int]]) -> str:
    """Say in words what crashes, and older copies of the checkpoint, cost."""
    ranges = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in lost)
    return (
        f"A crash interrupted the run, or the run went on from an older checkpoint. The updates of steps {ranges} were lost, but "
        "these steps are charged, because their noisy results may have been seen"
    )


def _lost(run: RunReport) -> list[str]:
    return [f"<p>{told_lost(run.lost)}. The weights took {run.updates} updates.</p>"] if run.lost else []


def _is_lost(run: RunReport, step: int) -> bool:
    return any(first <= step <= last for first, last in run.lost)


def _groups(run: RunReport) -> str:
    rows = "".join(
        f"<tr><td>{escape(group)}</td><td>{len(run.partition[group])}</td><td>{run.partition.sizes[group]:,}</td>"
        f"<td>{run.thresholds[group]:.6g}</td><td>{run.noise_stds[group]:.6g}</td>"
        f"<td>{run.noise_stds[group] / run.expected_batch_size:.3g}</td></tr>"
        for group in run.partition
    )
    head = "<tr><th>group</th><th>parameters</th><th>coordinates</th><th>threshold R_m</th><th>noise</th>"
    head += "<th>noise / batch size</th></tr>"
    return scrolling(f'<table class="numbers">{head}{rows}</table>', "groups")


def table(facts: Mapping[str, Any]) -> str:
    """Lay names and values out in two columns."""
    rows = "".join(
        f"<tr><th>{escape(plain_name(k))}</th><td>{escape(text_of(v, options=k.endswith('_options')))}</td></tr>"
        for k, v in facts.items()
    )
    return scrolling(f"<table>{rows}</table>", "facts")


def scrolling(table: str, meaning: str) -> str:
    """Put a table, as HTML, where it scrolls by itself on a narrow page."""
    # reached by the keyboard too, so that its right end can be seen without a mouse
    return f'<div class="table" role="region" aria-label="{meaning}" tabindex="0">{table}</div>'


def text_of(value: Any, *, options: bool = False) -> str:
    """Write a value of a setting or a fact in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(
            f"{plain_name(k) if options else k}: {text_of(v)}" for k, v in value.items()
        )  # else k is a group
    if isinstance(value, (list, tuple)):
        return ", ".join(map(text_of, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def headline(value: str, meaning: str) -> str:
    """Write one large figure and what it means."""
    return f"<div><strong>{escape(value)}</strong><span>{escape(meaning)}</span></div>"


def side_by_side(*figures: tuple[str, str]) -> list[str]:
    """Lay out figures, each as (SVG, what it shows); on a narrow page they stand below each other."""
    return ['<div class="charts">', *(_image(*figure) for figure in figures), "</div>"]


def _image(svg: str, meaning: str) -> str:
    # as an image, so that the identifiers inside two figures can't clash
    data = base64.b64encode(svg.encode()).decode()
    return f'<img alt="{escape(meaning)}" src="data:image/svg+xml;base64,{data}">'


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #1d2430; }}
body {{ max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; }}
h3 {{ font-size: 1rem; margin: 1.4rem 0 .4rem; font-weight: 600; }}
h2 {{ font-size: 1.1rem; margin-top: 2.2rem; padding-bottom: .2rem; border-bottom: 1px solid #d5dae1; }}
.figures {{ display: flex; flex-wrap: wrap; gap: 1rem 2.5rem; }}
.figures strong {{ display: block; font-size: 1.6rem; font-weight: 600; }}
.figures span {{ color: #596273; }}
.charts {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr)); gap: 1rem; }}
.charts img {{ width: 100%; max-width: 34rem; height: auto; }}
.table {{ overflow-x: auto; }}
p {{ overflow-wrap: anywhere; }}
table {{ border-collapse: collapse; }}
th, td {{ text-align: left; vertical-align: top; padding: .15rem 1.2rem .15rem 0; }}
table th {{ font-weight: 500; color: #596273; }}
@media (min-width: 40rem) {{ table th {{ white-space: nowrap; }} }}
.numbers td {{ white-space: nowrap; }}
.numbers th {{ white-space: normal; vertical-align: bottom; }}
td {{ overflow-wrap: break-word; }}
.numbers td + td, .numbers th + th {{ text-align: right; font-variant-numeric: tabular-nums; }}
@media print {{
body {{ font-size: 11px; max-width: none; margin: 0; padding: 0; }}
h2, h3 {{ break-after: avoid; }}
.charts {{ grid-template-columns: 1fr 1fr; }}
.charts img, tr {{ break-inside: avoid; }}
.table {{ overflow: visible; }}
th, td {{ padding-right: .6rem; }}
.numbers td {{ white-space: normal; }}
}}
</style>
</head>
<body>
{body}
</body>
</html>
"""
