"""Draws docs/figures/gallery/ from docs/gallery.json, and writes docs/gallery.md: every kind of plot that this library makes.

    python benchmarks/gallery.py [RUN ...]

With folders of runs (of ``groupclip train --out``) the JSON is first made from what they publish. The first run's course and norms
are drawn, and the last one's groups.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from groupclip.cli.compared import compared
from groupclip.run.environment import environment
from groupclip.run.published import read_published
from groupclip.statement import plots

FILE = Path(__file__)
DOCS = FILE.parent.parent / "docs"
ROUNDS = 7
Facts = Mapping[str, Any]


class Plot(NamedTuple):
    """One figure of the gallery: what it shows, and what draws it. ``draw``: None for a figure of another page, at ``file``."""

    file: str
    title: str
    shows: str
    made_by: str
    draw: Callable[[Facts], str] | None = None


def gathered(folders: Sequence[Path]) -> Facts:
    """Return what the figures need, from runs."""
    runs = [read_published(folder) for folder in folders]
    found = compared(folders, ROUNDS)
    return {
        "environment": environment(torch.device("cpu")),
        "runs": [
            {
                "name": run.name, "style": run.partition.style, "groups": run.groups, "epsilon": run.epsilon, "delta": run.delta,
                "accuracy": run.accuracy, "chance": run.chance, "accuracies": run.accuracies, "epsilons": run.epsilons,
                "peak_bytes": run.peak_bytes, "seconds": run.seconds, "thresholds": run.thresholds, "noise_stds": run.noise_stds,
                "sizes": dict(run.partition.sizes), "expected_batch_size": run.expected_batch_size,
                "planned": run.settings["epsilon"],
            }
            for run in found
        ],
        "norms": [{"step": row["step"], **row["noisy_gradient_norm"]} for row in runs[0].rows],
    }  # fmt: skip


def _accuracy(facts: Facts) -> str:
    run = facts["runs"][0]
    return plots.accuracy(run["accuracies"], {"guessing": run["chance"]})


def _epsilon(facts: Facts) -> str:
    run = facts["runs"][0]
    return plots.epsilon(run["epsilons"], run["planned"])


def _norms(facts: Facts) -> str:
    run, rows = facts["runs"][0], facts["norms"]
    curves = {group: [(row["step"], row[group]) for row in rows] for group in run["sizes"]}
    noise = {g: run["noise_stds"][g] * math.sqrt(size) / run["expected_batch_size"] for g, size in run["sizes"].items()}
    return plots.noisy_norms(curves, noise)


def _sizes(facts: Facts) -> str:
    return plots.bars(facts["runs"][-1]["sizes"], "Coordinates in the group")


def _over_groups(name: str, title: str, unit: str) -> Callable[[Facts], str]:
    def draw(facts: Facts) -> str:
        curves = {run["name"]: [(run["groups"], run[name])] for run in facts["runs"]}
        return plots.of_runs(curves, title, "groups M", unit=unit, points=True)

    return draw


def _trade_off(facts: Facts) -> str:
    curves = {run["name"]: [(run["peak_bytes"], run["accuracy"])] for run in facts["runs"]}
    return plots.of_runs(curves, "Accuracy against peak memory", "peak memory", unit="%", x_unit="B", points=True)


def _on_the_way(facts: Facts) -> str:
    return plots.of_runs({run["name"]: run["accuracies"] for run in facts["runs"]}, "Accuracy on the way", "step", unit="%")


def _thresholds(facts: Facts) -> str:
    curves = {run["name"]: list(enumerate(run["thresholds"].values(), 1)) for run in facts["runs"]}
    return plots.of_runs(curves, "Clipping threshold R_m", "place of the group, from the input on")


_RUN, _RUNS = "report.html of `groupclip train`", "`groupclip report`"
PLOTS = (
    Plot("figures/gallery/accuracy.svg", "A run: accuracy", "Held-out accuracy over the steps, and what guessing has.", _RUN,
         _accuracy),
    Plot("figures/gallery/epsilon.svg", "A run: epsilon", "What is spent after each step, and what was planned.", _RUN, _epsilon),
    Plot("figures/gallery/norms.svg", "A run: noisy gradients",
         "The norm of each group's gradient after clipping and noise; dotted, noise alone. What lies above it is signal.", _RUN,
         _norms),
    Plot("figures/gallery/sizes.svg", "A run: groups", "How many coordinates each group has.", _RUN, _sizes),
    Plot("figures/gallery/runs-accuracy.svg", "Runs: accuracy over the groups", "One dot a run.", _RUNS,
         _over_groups("accuracy", "Accuracy over the groups", "%")),
    Plot("figures/gallery/runs-trade-off.svg", "Runs: accuracy against memory", "Up and to the left is better.", _RUNS, _trade_off),
    Plot("figures/gallery/runs-memory.svg", "Runs: memory over the groups", "Predicted for a full micro-batch.", _RUNS,
         _over_groups("peak_bytes", "Peak memory over the groups", "B")),
    Plot("figures/gallery/runs-time.svg", "Runs: time over the groups", "Of a clipping pass; measured on made-up records.", _RUNS,
         _over_groups("seconds", "Time of a record over the groups", "s")),
    Plot("figures/gallery/runs-way.svg", "Runs: accuracy on the way", "The lines of all runs.", _RUNS, _on_the_way),
    Plot("figures/gallery/runs-thresholds.svg", "Runs: thresholds",
         "Of each group. Those of the adaptive run moved to the medians of the norms.", _RUNS, _thresholds),
    Plot("figures/vit-large-gram.png", "Memory of a pass", "Live bytes over one pass of a ViT-L, by style, before anything is run.",
         "`groupclip plan --model vit-large --batch 32 --groups 4 --plot plan.png`; [memory](memory.md)"),
    Plot("figures/vit-large-groups.png", "Memory over the groups", "The peak for uniform and for planned groups.",
         "`benchmarks/memory.py`; [memory](memory.md)"),
    Plot("figures/vit-small-throughput.png", "Memory and throughput", "Measured, over the number of groups.",
         "`benchmarks/memory.py`; [memory](memory.md)"),
    Plot("figures/bound-convex.png", "The paper's bound", "Theorem 1 over the steps, and measured gradient norms below it.",
         "`benchmarks/bound.py`; `groupclip bound --groups 1,4,75 --steps 10000 --plot bound.png` draws others; "
         "[theory](theory.md)"),
    Plot("reproduction/vision-small-groups.svg", "Reproduction: accuracy over the groups", "Means of repetitions.",
         "`groupclip reproduce vision --scale small`; [vision](reproduction/vision-small.md)"),
    Plot("reproduction/vision-small-memory.svg", "Reproduction: accuracy against memory", "One dot a clipping style.",
         "`groupclip reproduce vision --scale small`; [vision](reproduction/vision-small.md)"),
)  # fmt: skip


def drawn(facts: Facts) -> dict[str, str]:
    """File of each figure of the gallery's own -> SVG text."""
    return {plot.file: plot.draw(facts) for plot in PLOTS if plot.draw is not None}


def written(facts: Facts) -> str:
    """docs/gallery.md."""
    runs, made = facts["runs"], facts["environment"]
    names = ",\n".join(f"{run['name']} ({run['style']}, M={run['groups']}, {run['accuracy']:.1%})" for run in runs)
    parts = [
        "# Gallery",
        "Every kind of plot that this library makes, each with what draws it. A report holds its plots as SVG inside one HTML\n"
        "file, so it can be passed on alone.",
        f"The plots of runs are of {len(runs)} runs on scikit-learn's digits, one each, at epsilon {runs[0]['planned']:g} "
        f"(delta {runs[0]['delta']:g}):\n{names}. They show how the plots look; one run a style doesn't tell which style is best.\n"
        f"Times are of {made['processor']}, {made['threads']} thread.",
        "    groupclip train --task digits --clipping layer-wise --epsilon 3 --pretrain-steps 100 --steps 60 --out runs/layer-wise"
        "\n"
        "    groupclip report runs/uniform-2 runs/all-layer runs/layer-wise runs/layer-wise-adaptive\n"
        "    python benchmarks/gallery.py runs/uniform-2 runs/all-layer runs/layer-wise runs/layer-wise-adaptive",
        "The last of them has `--clip abadi --adaptive 0.5` besides. `benchmarks/gallery.py` keeps what the plots need in\n"
        "`docs/gallery.json`, and makes this page from it.",
    ]
    for plot in PLOTS:
        parts.append(f"## {plot.title}\n\n{plot.shows} Made by {plot.made_by}.\n\n![{plot.title}]({plot.file})")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    folders = parser.parse_args().runs
    source = DOCS / "gallery.json"
    if folders:
        source.write_text(json.dumps(_rounded(gathered(folders))) + "\n", encoding="utf-8")
    facts = json.loads(source.read_text(encoding="utf-8"))
    for file, text in drawn(facts).items():
        (DOCS / file).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / file).write_text(text, encoding="utf-8")
    (DOCS / "gallery.md").write_text(written(facts), encoding="utf-8")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {name: _rounded(held) for name, held in value.items()}
    return [_rounded(held) for held in value] if isinstance(value, (list, tuple)) else value


if __name__ == "__main__":
    main()
