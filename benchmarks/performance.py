"""Whole steps of tiny models, private and plain and under Opacus, one sample at a time, and with every kind of batch.

    python benchmarks/performance.py --json docs/performance.json
    python benchmarks/performance.py --only "first step" --json docs/performance.json
    python benchmarks/performance_page.py

All ways take turns in one run on one thread; a ratio is to the plain step of its own round. Needs opacus, transformers and
peft. It takes one to two minutes on an idle core, and as much again for each part that is measured in processes of its own: a first
step of RoBERTa-base (:mod:`fresh_step`, on two threads), and passes after every history (:mod:`histories`).
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import logging
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from math import prod
from pathlib import Path
from typing import Any

import torch
from tiny import BARE, CASES, LOOP, OVER_ALL_LAYERS, PLAIN, WAYS, Case, Step, exact, leaves, prepared, roberta
from torch.utils.flop_counter import FlopCounterMode

import groupclip as gc
from groupclip.paper.bench import interleaved
from groupclip.run.environment import environment

SEED = 0
SIZES = (1, 2, 4, 8, 16, 32, 64)
PADDED = ("none", "every", "some")
APART = {"first step": "fresh_step.py", "histories": "histories.py"}  # parts that are measured in processes of their own
CLIPPED = "groupclip, all-layer"


@dataclass(frozen=True)
class Moment:
    """Seconds of two clocks, read together."""

    processor: float
    wall: float

    def __sub__(self, other: Moment) -> Moment:
        return Moment(self.processor - other.processor, self.wall - other.wall)


def now() -> Moment:
    return Moment(time.process_time(), time.perf_counter())


def timed(runs: Mapping[str, Step], rounds: int) -> dict[str, list[Moment]]:
    """What each way took in each round, by both clocks."""
    return interleaved(runs, rounds, now)  # pyright: ignore[reportReturnType, reportArgumentType]


def quartiles(values: Sequence[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": round(middle, 4), "q1": round(low, 4), "q3": round(high, 4)}


def compared(times: Mapping[str, Sequence[Moment]], way: str, base: str) -> dict[str, Any]:
    """Milliseconds, and ratios to ``base`` in the same round, by both clocks."""
    found: dict[str, Any] = {}
    for clock in ("processor", "wall"):
        mine, theirs = ([getattr(taken, clock) for taken in times[each]] for each in (way, base))
        found[clock] = {
            "ratio": quartiles([m / t for m, t in zip(mine, theirs, strict=True)]),
            "over, ms": quartiles([1e3 * (m - t) for m, t in zip(mine, theirs, strict=True)]),
            "ms": round(1e3 * statistics.median(mine), 3),
        }
    return found


def python_calls(run: Step) -> int:
    """Calls of functions written in Python."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def matrix_times_vector(matrix: Sequence[int], vector: Sequence[int], **_: object) -> int:
    return 2 * matrix[0] * matrix[1]


def gradients_of_convolution(
    grads: Sequence[int], inputs: Sequence[int], weight: Sequence[int], _bias: object, _stride: object, _padding: object,
    _dilation: object, transposed: bool, _output_padding: object, _groups: int, asked: Sequence[bool], **_: object,
) -> int:  # fmt: skip
    """Each of the two takes what the convolution itself does: ``weight`` has the inputs of one group of channels alone."""
    positions = prod((inputs if transposed else grads)[2:])
    return sum(asked[:2]) * 2 * grads[0] * positions * prod(weight)


def flops(run: Step) -> int:
    """Of products with matrices, convolutions and attention, as torch counts them but for two.

    It leaves out a matrix times a vector, and takes gradients of a convolution's groups for those of all channels together.
    """
    ours = {torch.ops.aten.mv: matrix_times_vector, torch.ops.aten.convolution_backward: gradients_of_convolution}
    with FlopCounterMode(display=False, custom_mapping=ours) as counter:
        run()
    return counter.get_total_flops()


def refusal(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"


def beside_opacus(case: Case, rounds: int) -> dict[str, Any]:
    """Every way on one model: its times, or why it is refused."""
    steps: dict[str, Step] = {}
    refused: dict[str, str] = {}
    for way in WAYS:
        try:
            steps[way] = prepared(case, way)
        except Exception as error:  # whatever a library raises is what the table shows
            if way != BARE:  # which is for some kinds of layers, and no library
                refused[way] = refusal(error)
    times = timed(steps, rounds)
    parameters = case.trainable()
    calls = {way: python_calls(step) for way, step in steps.items()}
    counted = {way: flops(step) for way, step in steps.items()}
    rows = {}
    for way in steps:
        taken = compared(times, way, PLAIN)
        rows[way] = taken | {
            "ms over plain a parameter": round(taken["processor"]["over, ms"]["median"] / parameters, 4),
            "calls over plain a parameter": round((calls[way] - calls[PLAIN]) / parameters, 1),
            "flops over plain": round(counted[way] / counted[PLAIN], 3),
            "as single samples": exact(case, way) if way in (*OVER_ALL_LAYERS, BARE) else None,
        }
    plain_calls = calls[PLAIN]
    return {"name": case.name, "parameters": parameters, "calls of plain": plain_calls, "ways": rows, "refused": refused}


def one_at_a_time(rounds: int) -> dict[str, Any]:
    """A model that vmap can't run, against a loop over samples."""
    case = leaves()
    times = timed({way: prepared(case, way) for way in (LOOP, CLIPPED)}, rounds)
    return {"name": case.name, "ways": {way: compared(times, way, LOOP) for way in times}}


def passes(model: torch.nn.Module, cases: Mapping[str, Case], private: bool) -> dict[str, Step]:
    """A forward and backward pass over each case; one engine meets them in this order, each three times."""
    own = copy.deepcopy(model)
    engine = gc.attach(own, None, "all-layer", None, clip="abadi", thresholds=1.0) if private else None

    def run(case: Case) -> None:
        losses = case.losses(own)
        losses.sum().backward() if engine is None else engine.backward(losses)
        own.zero_grad()

    made: dict[str, Step] = {}
    for name, case in cases.items():
        made[name] = lambda case=case: run(case)
        for _ in range(3):
            made[name]()
    return made


def padding(rounds: int, kinds: Sequence[str]) -> dict[str, Any]:
    """The tiny RoBERTa: one engine for each order in which the kinds of batches are met first."""
    cases = {kind: roberta(padded=kind) for kind in kinds}
    model = cases[kinds[0]].model
    runs = {f"{PLAIN}: {kind}": run for kind, run in passes(model, cases, private=False).items()}
    orders = [", ".join(order) for order in itertools.permutations(kinds)]
    for order in orders:
        made = passes(model, {kind: cases[kind] for kind in order.split(", ")}, private=True)
        runs |= {f"{order}: {kind}": run for kind, run in made.items()}
    times = timed(runs, rounds)
    return {
        order: {kind: compared(times, f"{order}: {kind}", f"{PLAIN}: {kind}") for kind in kinds} for order in orders
    }


def sizes(rounds: int, of: Sequence[int]) -> dict[str, Any]:
    """The tiny RoBERTa: one engine, which meets the batches of every size in turns."""
    cases = {str(size): roberta(samples=size) for size in of}
    model = next(iter(cases.values())).model
    runs = {f"{PLAIN}: {size}": run for size, run in passes(model, cases, private=False).items()}
    runs |= passes(model, cases, private=True)
    times = timed(runs, rounds)
    return {size: compared(times, size, f"{PLAIN}: {size}") for size in cases}


def measured(
    rounds: int, models: Sequence[str] = tuple(CASES), kinds: Sequence[str] = PADDED, of: Sequence[int] = SIZES
) -> dict[str, Any]:
    """All that the page shows, as JSON has it.

    rounds: of the whole steps, two or more; the other tables take a third of them. models: names of ``CASES``.
    kinds: of padding. of: sizes of batches.
    """
    fewer = max(2, rounds // 3)
    load = os.getloadavg()[0]

    def seeded(measure: Callable[[], Any]) -> Any:
        torch.manual_seed(SEED)
        return measure()

    versions = {name: metadata.version(name) for name in ("opacus", "transformers", "peft")}
    return {
        "setting": {"rounds": rounds, "rounds of the other tables": fewer, "seed": SEED, "load before": round(load, 1)},
        "environment": environment(torch.device("cpu")) | versions,
        "models": {name: seeded(lambda name=name: beside_opacus(CASES[name](), rounds)) for name in models},
        "one at a time": seeded(lambda: one_at_a_time(fewer)),
        "padding": seeded(lambda: padding(fewer, kinds)),
        "sizes": seeded(lambda: sizes(fewer, of)),
    }


def apart(name: str, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """What the script of this part prints, and the load when it began."""
    load = round(os.getloadavg()[0], 1)
    command = [sys.executable, str(Path(__file__).parent / APART[name]), *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return {"load before": load, "found": json.loads(done.stdout)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--only", choices=APART, help="measure this part, and leave the others in the file as they are")
    parser.add_argument("--json", type=Path, help="the file to write; without it, the figures are printed")
    given = parser.parse_args()
    kept = json.loads(given.json.read_text(encoding="utf-8")) if given.only and given.json else {}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of Opacus's and torch's hooks
    logging.disable(logging.WARNING)  # that batches are of a sampling of one's own, once for each engine
    found = {} if given.only else measured(given.rounds)
    found |= {name: apart(name) for name in ([given.only] if given.only else APART)}
    text = json.dumps(kept | found, indent=1) + "\n"
    if given.json is None:
        print(text)
    else:
        given.json.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
