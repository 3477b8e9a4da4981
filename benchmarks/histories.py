"""Whether the time of a pass hangs on the batches before it: RoBERTas with a mask, 1 to 64 samples, with and without padding.

    python benchmarks/histories.py --rounds 9

Every engine lives in a process of its own, forked before any pass was made. Some met all kinds of batches, each in another order;
others met one kind alone. They take turns: of each kind of batch, first the engine that knows no other, then those that do. A ratio
is to the former in the same round, of processor time on one thread. Needs transformers and fork; prints JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from tiny import Case, roberta

import groupclip as gc

SEED = 0
SIZES = (1, 2, 4, 8, 16, 32, 64)
PADDED = ("none", "every", "some")
USUAL = 8  # samples of a batch where padding is looked at
WIDTHS = {"tiny": (64, 2), "small": (128, 4)}  # of layers, and how many
MET = 3  # times that an engine meets each kind of batch before it is timed


@dataclass(frozen=True)
class Kind:
    """samples: in a batch. padded: as :func:`tiny.roberta` takes it."""

    samples: int
    padded: str

    def __str__(self) -> str:
        return f"{self.samples} samples, {self.padded} padded"


@dataclass(frozen=True)
class Engine:
    """The process of an engine, at the other end of a pipe."""

    pipe: Connection

    def seconds(self, kind: Kind) -> float:
        self.pipe.send(kind)
        return self.pipe.recv()


def kinds(sizes: Sequence[int]) -> list[Kind]:
    padded = [Kind(USUAL, padded) for padded in PADDED]
    return padded + [Kind(size, "none") for size in sizes if size != USUAL]


def history(number: int, order: Sequence[str], sizes: Sequence[int]) -> list[Kind]:
    """Return all kinds: paddings in this order, and sizes between them, each time from another one on, upwards or downwards."""
    start = number % len(sizes)
    others = [*sizes[start:], *sizes[:start]][:: -1 if number % 2 else 1]
    share = -(-len(others) // len(order))
    found: list[Kind] = []
    for i, padded in enumerate(order):
        found += [Kind(USUAL, padded), *(Kind(size, "none") for size in others[i * share : (i + 1) * share])]
    return found


def serve(model: torch.nn.Module, cases: dict[Kind, Case], met: Sequence[Kind], pipe: Connection) -> None:
    """Meet batches of these kinds, then time a pass over each kind that is asked for; the one before it isn't timed."""
    torch.set_num_threads(1)
    engine = gc.attach(model, None, "all-layer", None, clip="abadi", thresholds=1.0)

    def run(kind: Kind) -> None:
        engine.backward(cases[kind].losses(model))
        model.zero_grad()

    for kind in met:
        for _ in range(MET):
            run(kind)
    pipe.send(None)
    while (kind := pipe.recv()) is not None:
        run(kind)
        begun = time.process_time()
        run(kind)
        pipe.send(time.process_time() - begun)


@contextmanager
def engines(model: torch.nn.Module, cases: dict[Kind, Case], met: dict[str, list[Kind]]) -> Iterator[dict[str, Engine]]:
    """One engine for each list of kinds, which it has met; all end at the end."""
    forks = multiprocessing.get_context("fork")
    running = []
    for each in met.values():
        here, there = forks.Pipe()
        process = forks.Process(target=serve, args=(model, cases, each, there), daemon=True)
        process.start()
        running.append((process, here))
    try:
        for _, pipe in running:
            pipe.recv()
        yield {name: Engine(pipe) for name, (_, pipe) in zip(met, running, strict=True)}
    finally:
        for process, pipe in running:
            if process.is_alive():
                pipe.send(None)
            process.join()


def quartiles(values: Sequence[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": round(middle, 4), "q1": round(low, 4), "q3": round(high, 4)}


def compared(
    width: int, layers: int, rounds: int, sizes: Sequence[int], orders: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """Every kind of batch, after each history, over the same kind where no other was met."""
    torch.manual_seed(SEED)
    all_kinds = kinds(sizes)
    cases = {kind: roberta(samples=kind.samples, padded=kind.padded, width=width, layers=layers) for kind in all_kinds}
    model = next(iter(cases.values())).model
    histories = {", ".join(order): history(i, order, sizes) for i, order in enumerate(orders)}
    alone = {str(kind): [kind] for kind in all_kinds}
    times: dict[str, dict[str, list[float]]] = {
        str(kind): {name: [] for name in ("alone", *histories)} for kind in all_kinds
    }
    with engines(model, cases, alone | histories) as running:
        for _ in range(rounds):
            for kind in all_kinds:
                for name, taken in times[str(kind)].items():
                    taken.append(running[str(kind) if name == "alone" else name].seconds(kind))
    return {
        "name": f"RoBERTa of {layers} layers of {width}, T=16",
        "histories": {name: [str(kind) for kind in met] for name, met in histories.items()},
        "kinds": {
            kind: {
                "ms alone": round(1e3 * statistics.median(taken["alone"]), 3),
                "over alone": {
                    name: quartiles([mine / base for mine, base in zip(taken[name], taken["alone"], strict=True)])
                    for name in histories
                },
            }
            for kind, taken in times.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="two or more")
    parser.add_argument("--models", nargs="+", choices=WIDTHS, default=list(WIDTHS))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--orders", type=int, default=6, help="how many of the six orders of paddings")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    orders = list(itertools.permutations(PADDED))[: given.orders]
    print(json.dumps({name: compared(*WIDTHS[name], given.rounds, given.sizes, orders) for name in given.models}))


if __name__ == "__main__":
    main()
