"""Compares SGD, Adam and Adam that knows the noise, and writes docs/optimizers.json and the tables of docs/optimizers.md.

    python benchmarks/optimizers.py [DATA OUT] [--task NAME] [--seeds 5]

DATA holds fashion_mnist.npz and sst2.jsonl.gz (docs/reproduction-data.md). Each run is kept in OUT, so the same command goes on
after a stop. Without folders the page is written from the JSON. Each optimizer has a grid of five learning rates, three apart, and
one run of each; the best one then has --seeds new runs, which alone are in the table.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
from groupclip.paper.results import Result, find, gather, gathered, load_all, save
from groupclip.paper.scaled.summary import Difference, Score, table
from groupclip.run.environment import environment
from groupclip.tasks import load_task

NAME = "optimizers"
DOCS = Path(__file__).parent.parent / "docs"
MARK = "<!-- made by benchmarks/optimizers.py -->"
DELTA, STEPS, PARTS = 1e-5, 100, 8  # a batch is an eighth of the records
EPSILONS = (1.0, 3.0, 8.0)
TUNING = -1  # the seed of runs that choose a learning rate
FEWER = 5_000  # records of the larger sets
WORDS = 1024

Split = tuple[Tensor, Tensor]  # inputs [N, D] and labels [N]


def digits() -> tuple[Split, Split]:
    """8 x 8 pixels of handwritten digits, in [-1, 1]."""
    task = load_task("digits")
    train, test = ((part.tensors[0].flatten(1).float(), part.tensors[1]) for part in (task.train, task.test))
    return train, test


def fashion(data: Path) -> tuple[Split, Split]:
    """14 x 14 means of the pixels of the first images, in [-1, 1]."""

    def read(found: Any, split: str, count: int | None) -> Split:
        x = torch.from_numpy(found[f"{split}_x"][:count]).float()
        return (F.avg_pool2d(x.unsqueeze(1), 2).flatten(1) - 127.5) / 127.5, torch.from_numpy(
            found[f"{split}_y"][:count]
        ).long()

    with np.load(data / "fashion_mnist.npz") as found:
        return read(found, "train", FEWER), read(found, "test", None)


def phrases(data: Path) -> tuple[Split, Split]:
    """Which of 1,024 hashed words the first phrases have: mostly zeros."""

    def read(rows: list[dict[str, Any]]) -> Split:
        x = torch.zeros(len(rows), WORDS)
        for row, found in enumerate(rows):
            x[row, [zlib.crc32(word.encode()) % WORDS for word in found["text"].split()]] = 1.0
        return x, torch.tensor([found["label"] for found in rows])

    with gzip.open(data / "sst2.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return read([row for row in rows if row["split"] == "train"][:FEWER]), read(
        [r for r in rows if r["split"] == "dev"]
    )


def linear(inputs: int, classes: int) -> nn.Module:
    """A linear model."""
    return nn.Linear(inputs, classes)


def hidden(inputs: int, classes: int) -> nn.Module:
    """One hidden layer of 64."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, classes))


def tasks(data: Path) -> dict[str, tuple[Callable[[int, int], nn.Module], Callable[[], tuple[Split, Split]]]]:
    """Name -> model, and how its records are read."""
    return {
        "digits, linear": (linear, digits),
        "digits, one hidden layer": (hidden, digits),
        "Fashion-MNIST (5,000), one hidden layer": (hidden, functools.partial(fashion, data)),
        "SST-2 (5,000), hashed words, linear": (linear, functools.partial(phrases, data)),
    }


OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], tuple[float, ...]]] = {
    "SGD": (functools.partial(torch.optim.SGD, momentum=0.9), (0.03, 0.1, 0.3, 1.0, 3.0)),
    "Adam": (torch.optim.Adam, (0.003, 0.01, 0.03, 0.1, 0.3)),
    "noise-aware Adam": (gc.NoiseAwareAdam, (0.003, 0.01, 0.03, 0.1, 0.3)),
}


@functools.cache
def plan(records: int, epsilon: float) -> gc.Mechanism:
    """The plan of a task at an epsilon: the same for all optimizers."""
    return gc.Mechanism(dataset_size=records, expected_batch_size=records // PARTS, steps=STEPS).calibrate(
        epsilon=epsilon, delta=DELTA
    )


def run(cell: dict[str, Any], build: Callable[[int, int], nn.Module], train: Split, test: Split, out: Path) -> Result:
    """Train once, or read what the run gave."""
    if (done := find(out, NAME, cell)) is not None:
        return done
    torch.manual_seed(cell["seed"] + 1)  # of the initial weights alone
    model = build(train[0].shape[1], int(train[1].max()) + 1)
    make, _ = OPTIMIZERS[cell["optimizer"]]
    optimizer = make(model.parameters(), lr=cell["lr"])
    mechanism = plan(len(train[0]), cell["epsilon"])
    engine = gc.attach(model, optimizer, "all-layer", mechanism)
    if isinstance(optimizer, gc.NoiseAwareAdam):
        optimizer.follow(engine)
    for batch in gc.poisson_batches(range(len(train[0])), mechanism, microbatch=4096, collate=torch.tensor):
        for rows in batch:
            engine.backward(F.cross_entropy(model(train[0][rows]), train[1][rows], reduction="none"))
        optimizer.step()
        optimizer.zero_grad()
    spent = engine.epsilon(delta=DELTA)
    engine.detach()
    with torch.no_grad():
        right = 100 * (model(test[0]).argmax(1) == test[1]).double().mean().item()
    result = Result(
        experiment=NAME, cell=cell,
        settings={"steps": STEPS, "batch_size": mechanism.expected_batch_size, "records": len(train[0])},
        privacy={"epsilon": spent, "delta": DELTA, "noise_multiplier": mechanism.noise_multiplier}, groups=1,
        metrics={"accuracy": right}, seconds=0.0, peak_bytes=None, environment=environment(torch.device("cpu")),
    )  # fmt: skip
    save(out, result)
    return result


def measure(data: Path, out: Path, wanted: list[str] | None, seeds: int) -> None:
    """Run whatever isn't there yet."""
    for task, (make, load) in tasks(data).items():
        if wanted and task not in wanted:
            continue
        train, test = load()
        for epsilon in EPSILONS:
            for optimizer, (_, rates) in OPTIMIZERS.items():
                cell = {"task": task, "epsilon": epsilon, "optimizer": optimizer}
                for lr in rates:
                    run({**cell, "lr": lr, "seed": TUNING}, make, train, test, out)
                lr = chosen(load_all(out, NAME), task, epsilon, optimizer)
                found = [run({**cell, "lr": lr, "seed": seed}, make, train, test, out) for seed in range(seeds)]
                print(task, epsilon, optimizer, lr, Score(tuple(r.metrics["accuracy"] for r in found)), flush=True)


def of(results: list[Result], task: str, epsilon: float, optimizer: str) -> list[Result]:
    """The runs of one cell of the table."""
    key = (task, epsilon, optimizer)
    return [r for r in results if (r.cell["task"], r.cell["epsilon"], r.cell["optimizer"]) == key]


def chosen(results: list[Result], task: str, epsilon: float, optimizer: str) -> float:
    """The learning rate with the best tuning run; of equals the smallest."""
    tried = {
        r.cell["lr"]: r.metrics["accuracy"] for r in of(results, task, epsilon, optimizer) if r.cell["seed"] == TUNING
    }
    return max(sorted(tried), key=tried.__getitem__)


def apart(score: Score | None, other: Score | None) -> str:
    """The difference of two means, with its standard error; in bold if it is more than two of them."""
    if score is None or other is None or min(len(score.values), len(other.values)) < 2:
        return ""
    error = math.sqrt(sum(s.deviation**2 / len(s.values) for s in (score, other)))
    found = Difference(score.mean - other.mean, error)
    return f"**{found}**" if found.clear else str(found)


def lines(results: list[Result]) -> Iterator[list[str]]:
    """A line for each task and epsilon: accuracy by optimizer, with the learning rate that was chosen."""
    for task in tasks(Path()):
        for epsilon in EPSILONS:
            scores: list[Score | None] = []
            cells = []
            for optimizer in OPTIMIZERS:
                runs = of(results, task, epsilon, optimizer)
                lr = chosen(results, task, epsilon, optimizer) if runs else None
                found = tuple(r.metrics["accuracy"] for r in runs if r.cell["seed"] != TUNING and r.cell["lr"] == lr)
                scores.append(Score(found) if found else None)
                cells.append(f"{Score(found)}, lr {lr:g}" if found else "not run")
            cells += [apart(scores[-1], other) for other in scores[1::-1]]
            yield [task, f"{epsilon:g}", *cells]


def written(docs: Path) -> str:
    """The page, with the table of the kept results between its two marks."""
    page = (docs / f"{NAME}.md").read_text(encoding="utf-8")
    heads = ["task", "epsilon", *(f"{name}, %" for name in OPTIMIZERS), "noise-aware less Adam", "noise-aware less SGD"]
    made = table(heads, list(lines(gathered(docs / f"{NAME}.json"))))
    head, _, rest = page.partition(MARK)
    return f"{head}{MARK}\n\n{made}\n\n{MARK}{rest.partition(MARK)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--task", action="append", help="these alone")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    if given.out is not None:
        measure(given.data, given.out, given.task, given.seeds)
        gather(given.out, NAME, DOCS / f"{NAME}.json")
    (DOCS / f"{NAME}.md").write_text(written(DOCS), encoding="utf-8")


if __name__ == "__main__":
    main()
