"""Compares what ``groupclip advise`` says with the best of a grid, and writes docs/advise.json and the table of docs/advise.md.

    python benchmarks/advise.py DATA OUT [--seeds 2]

DATA and OUT are as for ``groupclip reproduce records`` (features lie in OUT/made). Each run is kept in OUT/advise, so the same
command goes on after a stop. The grid has 24 points: 3 batch sizes, 2 numbers of steps, 4 learning rates around the advised ones.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from groupclip.models import build_model
from groupclip.paper.records.build import accuracy, linear
from groupclip.paper.records.features import Features, features
from groupclip.paper.results import Result, find
from groupclip.paper.scaled.summary import table
from groupclip.paper.settings import TrainSettings
from groupclip.paper.trainer import train_cell
from groupclip.paper.workload import Workload
from groupclip.privacy.advice import numbers
from groupclip.tasks import load_task

EPSILON, DELTA = 3.0, 1e-5
BATCHES, STEPS, RATES = (0.5, 1, 2), (0.5, 1), (0.25, 0.5, 1, 2)  # times what is advised; lr follows the steps
NAME = "advise"
DOCS = Path(__file__).parent.parent / "docs"
MARK = "<!-- made by benchmarks/advise.py -->"


def digits() -> tuple[Features, Features]:
    """8 x 8 pixels of handwritten digits, in [-1, 1]."""
    task = load_task("digits")
    parts = [
        (part.tensors[0].numpy().reshape(len(part), -1).astype(np.float16), part.tensors[1])
        for part in (task.train, task.test)
    ]
    return tuple(Features(values, labels, 10) for values, labels in parts)  # type: ignore[return-value]


def first(count: int, kind: str, file: str) -> Callable[[Path, Path], tuple[Features, Features]]:
    """Features of the first so many records."""

    def load(data: Path, kept: Path) -> tuple[Features, Features]:
        return features(kind, data / file, kept, count)

    return load


def tasks(data: Path, out: Path) -> dict[str, tuple[str, Callable[[], tuple[Features, Features]]]]:
    """Name -> what is trained, and its records."""
    made = out / "made"
    return {
        "digits, linear": ("linear", digits),
        "digits, cnn-small": ("scratch", digits),
        "Fashion-MNIST (10,000), scattering, linear": (
            "linear", lambda: first(10_000, "scattering", "fashion_mnist.npz")(data, made)),
        "SST-2 (10,000), MiniLM, linear": ("linear", lambda: first(10_000, "minilm", "sst2.jsonl.gz")(data, made)),
        "CIFAR-10 (10,000), EfficientNet, linear": (
            "linear", lambda: first(10_000, "efficientnet", "cifar10.npz")(data, made)),
    }  # fmt: skip


def points(n: int, start: str, inputs: int) -> Iterator[tuple[dict[str, float], bool]]:
    """Settings of the grid, and whether they are the advised ones."""
    advised = numbers(n, epsilon=EPSILON, delta=DELTA, start=start, inputs=inputs if start == "linear" else None)
    plan = advised.mechanism
    for batch, steps, rate in itertools.product(BATCHES, STEPS, RATES):
        size = min(n - 1, round(batch * plan.expected_batch_size))
        yield (
            {"batch_size": size, "steps": round(steps * plan.steps), "lr": float(f"{advised.lr_sgd * rate / steps:.3g}")},
            (batch, steps, rate) == (1, 1, 1),
        )


def run(task: str, start: str, records: tuple[Features, Features], point: dict[str, float], seed: int, out: Path) -> Result:
    train, test = records
    cell = {"task": task, **point, "seed": seed}
    if (done := find(out, NAME, cell)) is not None:
        return done
    torch.manual_seed(seed)
    side = int(train.values.shape[1] ** 0.5)
    images = start == "scratch"
    model = (
        build_model("cnn-small", input_shape=(1, side, side), num_classes=10)
        if images
        else linear(train.values.shape[1], train.classes)
    )

    def batch(rows: Any) -> Any:
        x, y = train.batch(rows)
        return (x.view(-1, 1, side, side), y) if images else (x, y)

    def scored(model: Any) -> dict[str, float]:
        if not images:
            return accuracy(model, test)
        x, y = test.batch(range(len(test)))
        with torch.no_grad():
            return {"accuracy": 100 * (model(x.view(-1, 1, side, side)).argmax(1) == y).double().mean().item()}

    settings = TrainSettings(
        epsilon=EPSILON, delta=DELTA, batch_size=int(point["batch_size"]), steps=int(point["steps"]), lr=point["lr"],
        microbatch=2048, optimizer="sgd", momentum=0.9, clipping="all-layer",
    )  # fmt: skip
    workload = Workload(
        name=task, model=model, train=train, collate=batch,  # type: ignore[arg-type]
        losses=lambda model, part: F.cross_entropy(model(part[0]), part[1], reduction="none"), evaluate=scored,
    )  # fmt: skip
    return train_cell(workload, experiment=NAME, cell=cell, settings=settings, folder=out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--task", action="append", help="these alone")
    given = parser.parse_args()
    rows = []
    for name, (start, load) in tasks(given.data, given.out).items():
        if given.task and name not in given.task:
            continue
        records = load()
        n, inputs = len(records[0]), records[0].values.shape[1]
        found = []
        for point, advised in points(n, start, inputs):
            scores = [run(name, start, records, point, seed, given.out).metrics["accuracy"] for seed in range(given.seeds)]
            found.append({**point, "advised": advised, "accuracy": fmean(scores), "runs": scores})
            print(name, found[-1], flush=True)
        rows.append({"task": name, "start": start, "records": n, "inputs": inputs, "points": found})
    kept = DOCS / "advise.json"
    others = [row for row in json.loads(kept.read_text(encoding="utf-8")) if row["task"] not in {r["task"] for r in rows}]
    kept.write_text(json.dumps([*others, *rows], indent=1) + "\n", encoding="utf-8")
    page = DOCS / "advise.md"
    page.write_text(with_table(page.read_text(encoding="utf-8"), [*others, *rows]), encoding="utf-8")


def with_table(page: str, rows: list[dict[str, Any]]) -> str:
    """Return the page with the table of these results between its two marks."""
    head, _, rest = page.partition(MARK)
    _, _, tail = rest.partition(MARK)
    made = table(["task", "records", "as advised, %", "best of the grid, %", "worst, %", "runs a point"], lines(rows))
    return f"{head}{MARK}\n\n{made}\n\n{MARK}{tail}"


def lines(rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    """A line a task: mean accuracy as advised, and of the best and the worst point."""
    for row in rows:
        scores = [point["accuracy"] for point in row["points"]]
        (advised,) = (point for point in row["points"] if point["advised"])
        yield [
            row["task"], f"{row['records']:,}", f"{advised['accuracy']:.1f}", f"{max(scores):.1f}", f"{min(scores):.1f}",
            str(len(advised["runs"])),
        ]  # fmt: skip


if __name__ == "__main__":
    main()
