"""Measures a rare class's recall over epsilon, by style, clip function and loss weight, and writes docs/imbalance.json.

    python benchmarks/imbalance.py DATA OUT [--seeds 3]

DATA holds fashion_mnist.npz. Each run is kept in OUT, so the same command goes on after a stop. The table of
docs/records.md is made from the JSON by ``benchmarks/records_page.py``.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from optimizers import Split, fashion, hidden
from torch import Tensor, nn

import groupclip as gc
from groupclip.paper.records.imbalance import CLIPS, EPSILONS, KEPT, NAME, RARE, STYLES
from groupclip.paper.results import Result, find, gather, save
from groupclip.run.environment import environment

DOCS = Path(__file__).parent.parent / "docs"
DELTA, STEPS, PARTS, LR = 1e-5, 50, 8, 0.03


def thinned(train: Split) -> Split:
    """All records but those of the rare class beyond the first few."""
    rare = (train[1] == RARE).nonzero().flatten()
    kept = torch.ones(len(train[1]), dtype=torch.bool)
    kept[rare[KEPT:]] = False
    return train[0][kept], train[1][kept]


@functools.cache
def plan(records: int, epsilon: float) -> gc.Mechanism:
    """The plan at an epsilon."""
    return gc.Mechanism(dataset_size=records, expected_batch_size=records // PARTS, steps=STEPS).calibrate(
        epsilon=epsilon, delta=DELTA
    )


def weighed(losses: Tensor, labels: Tensor, weight: float) -> Tensor:
    """Losses ``[B]``, those of common classes divided by the weight: a rare sample weighs as much as before, and they less."""
    return torch.where(labels == RARE, losses, losses / weight)


def recalls(model: nn.Module, test: Split) -> dict[str, float]:
    """Percent: of the rare class that is found, and the mean over all ten classes."""
    with torch.no_grad():
        right = model(test[0]).argmax(1) == test[1]
    each = [100 * right[test[1] == label].double().mean().item() for label in range(10)]
    return {"rare": each[RARE], "mean": sum(each) / len(each)}


def run(cell: dict[str, Any], train: Split, test: Split, out: Path) -> Result:
    """Train once, or read what the run gave. Without epsilon: without clipping and noise."""
    if (done := find(out, NAME, cell)) is not None:
        return done
    torch.manual_seed(cell["seed"])  # of the initial weights; without privacy also of the batches
    model, records, privacy = hidden(train[0].shape[1], 10), len(train[0]), {}
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)

    def losses(rows: Tensor) -> Tensor:
        found = F.cross_entropy(model(train[0][rows]), train[1][rows], reduction="none")
        return weighed(found, train[1][rows], cell["weight"])

    if cell["epsilon"] is None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            losses((torch.rand(records) < 1 / PARTS).nonzero().flatten()).mean().backward()
            optimizer.step()
    else:
        mechanism = plan(records, cell["epsilon"])
        engine = gc.attach(model, optimizer, cell["clipping"], mechanism, clip=cell["clip"])
        for batch in gc.poisson_batches(range(records), mechanism, microbatch=4096, collate=torch.tensor):
            for rows in batch:
                engine.backward(losses(rows))
            optimizer.step()
            optimizer.zero_grad()
        privacy = {
            "epsilon": engine.epsilon(delta=DELTA),
            "delta": DELTA,
            "noise_multiplier": mechanism.noise_multiplier,
        }
        engine.detach()
    result = Result(
        experiment=NAME, cell=cell, settings={"steps": STEPS, "batch_size": records // PARTS, "records": records, "lr": LR},
        privacy=privacy, groups=0, metrics=recalls(model, test), seconds=0.0, peak_bytes=None,
        environment=environment(torch.device("cpu")),
    )  # fmt: skip
    save(out, result)
    return result


def measure(data: Path, out: Path, seeds: int) -> None:
    """Run whatever isn't there yet, seed after seed."""
    train, test = fashion(data)
    train = thinned(train)
    for seed in range(seeds):
        for weight in sorted({weight for _, weight in CLIPS}):
            run({"epsilon": None, "clipping": "none", "clip": "none", "weight": weight, "seed": seed}, train, test, out)
        for epsilon, clipping, (clip, weight) in itertools.product(EPSILONS, STYLES, CLIPS):
            cell = {"epsilon": epsilon, "clipping": clipping, "clip": clip, "weight": weight, "seed": seed}
            print(cell, run(cell, train, test, out).metrics, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    measure(given.data, given.out, given.seeds)
    gather(given.out, NAME, DOCS / f"{NAME}.json")


if __name__ == "__main__":
    main()
