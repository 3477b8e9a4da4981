"""Trains small models with correlated noise and with DP-SGD, at epsilon 8, and writes what comes out into docs/.

    python benchmarks/correlated_training.py DATA OUT   # about 40 minutes on one core; goes on after a stop

DATA holds fashion_mnist.npz and sst2.jsonl.gz. Two tasks have all samples in batches of 1,000, three a tenth of them in batches of
100: the same steps and noise multiplier, and ten times the noise in a gradient. For each task and method the learning rate is the
best of a grid by two seeds that aren't among the ten that are told. Each run is a line of OUT/runs.jsonl. The result is "trained"
in docs/correlated-noise.json.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import groupclip as gc
from groupclip.privacy.epochs import steps_of

DOCS = Path(__file__).parent.parent / "docs"
FACTS = DOCS / "correlated-noise.json"
EPSILON, DELTA, EPOCHS = 8.0, 1e-5, 3
SEEDS, TUNING = tuple(range(10)), (100, 101)
WORDS = 4_096  # buckets

Records = tuple[Tensor, Tensor, Tensor, Tensor]  # inputs and labels of training, of test


def fashion(data: Path) -> Records:
    """Pixels of Fashion-MNIST, standardised by public constants."""
    held = np.load(data / "fashion_mnist.npz")

    def pixels(name: str) -> Tensor:
        return (torch.from_numpy(held[name]).float().flatten(1) / 255 - 0.5) / 0.5

    labels = [torch.from_numpy(held[name]).long() for name in ("train_y", "test_y")]
    return pixels("train_x"), labels[0], pixels("test_x"), labels[1]


def reviews(data: Path) -> Records:
    """Words and pairs of words of SST-2 in buckets, each text of norm 1."""
    with gzip.open(data / "sst2.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]

    def of(split: str) -> tuple[Tensor, Tensor]:
        found = [row for row in rows if row["split"] == split]
        values = torch.zeros(len(found), WORDS)
        for i, row in enumerate(found):
            words = re.findall(r"[a-z']+", row["text"])
            for token in [*words, *(" ".join(pair) for pair in pairwise(words))]:
                values[i, zlib.crc32(token.encode()) % WORDS] += 1
        return F.normalize(values, dim=1), torch.tensor([row["label"] for row in found])

    return *of("train"), *of("dev")


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 64), nn.Tanh(), nn.Linear(64, 10))


def pixels_alone() -> nn.Module:
    return nn.Linear(784, 10)


def linear() -> nn.Module:
    return nn.Linear(WORDS, 2, bias=False)


def tenth(load: Callable[[Path], Records]) -> Callable[[Path], Records]:
    """Every tenth sample for training, and all for test."""

    def loaded(data: Path) -> Records:
        x, y, *test = load(data)
        return x[::10].contiguous(), y[::10].contiguous(), *test

    return loaded


TASKS: dict[str, tuple[Callable[[Path], Records], Callable[[], nn.Module], int, tuple[float, ...]]] = {
    "Fashion-MNIST, a perceptron of 64": (fashion, perceptron, 1_000, (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)),
    "SST-2, words, linear": (reviews, linear, 1_000, (16.0, 32.0, 64.0, 128.0, 256.0, 512.0)),
    "a tenth of Fashion-MNIST, a perceptron of 64": (tenth(fashion), perceptron, 100, (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)),
    "a tenth of SST-2, words, linear": (tenth(reviews), linear, 100, (4.0, 8.0, 16.0, 32.0, 64.0, 128.0)),
    "a tenth of Fashion-MNIST, linear": (tenth(fashion), pixels_alone, 100, (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)),
}
"""Records, model, expected batch size, learning rates of the grid."""


def plans(size: int, batch: int) -> dict[str, gc.Mechanism]:
    """The plan of each method, of one epsilon."""
    one = gc.Mechanism(
        dataset_size=size, expected_batch_size=batch, steps=steps_of(EPOCHS, size, batch), adjacency="zero-out"
    )
    return {
        "DP-SGD": one.calibrate(epsilon=EPSILON, delta=DELTA),
        "correlated": replace(one, bands="auto").calibrate(epsilon=EPSILON, delta=DELTA),
    }


def accuracy(records: Records, made: Callable[[], nn.Module], plan: gc.Mechanism, rate: float, seed: int) -> float:
    """Percent right on test, of one private run of plain gradient descent with a constant learning rate."""
    x, y, x_test, y_test = records
    torch.manual_seed(seed)
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    engine = gc.attach(model, optimizer, "all-layer", plan)
    for batch in gc.logical_batches(TensorDataset(x, y), plan, 512, collate=_stacked):
        for inputs, labels in batch:
            engine.backward(F.cross_entropy(model(inputs), labels, reduction="none"))
        optimizer.step()
        optimizer.zero_grad()
    engine.detach()
    with torch.no_grad():
        return 100 * (model(x_test).argmax(1) == y_test).double().mean().item()


def _stacked(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])


def runs(out: Path) -> Iterator[dict[str, Any]]:
    if (out / "runs.jsonl").is_file():
        yield from map(json.loads, (out / "runs.jsonl").read_text(encoding="utf-8").splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--task", action="append", choices=list(TASKS), help="these alone, and nothing is written into docs/")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    known = {(r["task"], r["method"], r["rate"], r["seed"]): r["accuracy"] for r in runs(given.out)}
    told = []
    for task, (load, made, batch, rates) in TASKS.items():
        if given.task and task not in given.task:
            continue
        records = load(given.data)
        methods = plans(len(records[0]), batch)

        def score(method: str, rate: float, seed: int) -> float:
            key = task, method, rate, seed  # noqa: B023
            if key not in known:
                found = known[key] = accuracy(records, made, methods[method], rate, seed)  # noqa: B023
                line = {"task": key[0], "method": method, "rate": rate, "seed": seed, "accuracy": found}
                with (given.out / "runs.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                print(line, flush=True)
            return known[key]

        row: dict[str, Any] = {"task": task, "epsilon": EPSILON, "delta": DELTA, "batch": batch, "steps": methods["DP-SGD"].steps}
        for method, plan in methods.items():
            tuned = {rate: fmean(score(method, rate, seed) for seed in TUNING) for rate in rates}
            rate = max(tuned, key=tuned.__getitem__)
            scores = [score(method, rate, seed) for seed in SEEDS]
            row[method] = {
                "bands": plan.bands, "sigma": plan.noise_multiplier, "rate": rate, "runs": scores, "mean": fmean(scores),
                "standard_error": stdev(scores) / math.sqrt(len(scores)), "tuning": tuned,
            }  # fmt: skip
        apart = row["correlated"]["mean"] - row["DP-SGD"]["mean"]
        error = math.hypot(*(row[method]["standard_error"] for method in methods))
        told.append({**row, "gain": apart, "standard_error": error, "better": apart > 2 * error})
    if given.task:
        return
    facts = json.loads(FACTS.read_text(encoding="utf-8"))
    FACTS.write_text(json.dumps({**facts, "trained": told}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
