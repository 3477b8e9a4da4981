"""The first step of RoBERTa-base with random weights in a fresh process, plain and private, and ``gc.check``; JSON.

    python benchmarks/fresh_step.py --rounds 3

Each step is of a process of its own, which does nothing before but import, and build the model. Plain and private processes take
turns; a difference is between two of one round. The private step begins before ``attach``. The check, and a pass beside it,
come after a plain first step. Needs transformers.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SEED = 0
PLAIN, PRIVATE, CHECK = "plain", "private", "check"
STYLE = "block-wise"
CLOCKS = ("processor", "wall")
Marks = list[tuple[str, tuple[float, float]]]  # what has ended, and when, by both clocks


def marked(marks: Marks, name: str) -> None:
    marks.append((name, (time.process_time(), time.perf_counter())))


def parts(marks: Marks) -> dict[str, dict[str, float]]:
    """Seconds of each part by both clocks, and of all."""
    spans = [(name, before, after) for (_, before), (name, after) in pairwise(marks)]
    spans.append(("all", marks[0][1], marks[-1][1]))
    return {
        clock: {name: round(after[i] - before[i], 4) for name, before, after in spans} for i, clock in enumerate(CLOCKS)
    }


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).logits, y, reduction="none")


def once(way: str, batch: int, tokens: int, width: int, layers: int) -> dict[str, dict[str, float]]:
    """What the first step takes in this process, a fresh one; a plain one is followed by a second pass, and a check."""
    from transformers import RobertaConfig, RobertaForSequenceClassification

    import groupclip as gc

    torch.manual_seed(SEED)
    config = RobertaConfig(
        vocab_size=50_265, max_position_embeddings=514, type_vocab_size=1, hidden_size=width, num_hidden_layers=layers,
        num_attention_heads=width // 64, intermediate_size=4 * width,
    )  # fmt: skip
    model = RobertaForSequenceClassification(config).train()
    x, y = torch.randint(5, 50_000, (batch, tokens)), torch.randint(2, (batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    first: Marks = []
    marked(first, "")
    if way == PRIVATE:
        mechanism = gc.Mechanism(dataset_size=50_000, expected_batch_size=1_000, steps=100, noise_multiplier=1.0)
        engine = gc.attach(model, optimizer, STYLE, mechanism)
        marked(first, "attach")
        engine.backward(losses(model, x, y))
    else:
        losses(model, x, y).mean().backward()
    marked(first, "forward and backward")
    optimizer.step()
    marked(first, "step")
    if way == PRIVATE:
        return parts(first)
    optimizer.zero_grad()
    then: Marks = []
    marked(then, "")
    losses(model, x, y).mean().backward()
    marked(then, "pass")
    optimizer.zero_grad()
    marked(then, "between")
    gc.check(model, losses, (x, y), STYLE)
    marked(then, CHECK)
    later = parts(then)
    return {
        clock: found | {name: later[clock][name] for name in ("pass", CHECK)} for clock, found in parts(first).items()
    }


def fresh(way: str, asked: Sequence[str], cache: str) -> dict[str, dict[str, float]]:
    """Do :func:`once` in a new process; compiled modules are kept in ``cache``, as they are in an installed package."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), "--once", way, *asked], check=True, stdout=subprocess.PIPE, text=True,
        env=environment | {"PYTHONPYCACHEPREFIX": cache},
    )  # fmt: skip
    return json.loads(done.stdout)


def middle(found: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        clock: {part: round(statistics.median(one[clock][part] for one in found), 3) for part in found[0][clock]}
        for clock in CLOCKS
    }


def measured(rounds: int, batch: int, tokens: int, width: int, layers: int, threads: int) -> dict[str, Any]:
    """Medians of ``rounds`` processes of each way."""
    asked = ["--batch", batch, "--tokens", tokens, "--width", width, "--layers", layers, "--threads", threads]
    words = [str(word) for word in asked]
    with tempfile.TemporaryDirectory() as cache:
        for way in (PLAIN, PRIVATE):  # so that modules are compiled
            fresh(way, [*words, "--width", "64", "--layers", "2"], cache)
        taken = [{way: fresh(way, words, cache) for way in (PLAIN, PRIVATE)} for _ in range(rounds)]
    over = {
        clock: [round(one[PRIVATE][clock]["all"] - one[PLAIN][clock]["all"], 3) for one in taken] for clock in CLOCKS
    }
    times = {clock: [one[PLAIN][clock][CHECK] / one[PLAIN][clock]["pass"] for one in taken] for clock in CLOCKS}
    return {
        "name": f"RoBERTa of {layers} layers of {width}, B={batch}, T={tokens}, {STYLE}",
        "threads": threads,
        "processes": rounds,
        "ways": {way: middle([one[way] for one in taken]) for way in (PLAIN, PRIVATE)},
        "private over plain, s": {
            clock: {"median": round(statistics.median(each), 3), "each": each} for clock, each in over.items()
        },
        "check over a pass": {clock: round(statistics.median(each), 2) for clock, each in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--once", choices=(PLAIN, PRIVATE), help="measure this in the present process")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    logging.disable(logging.WARNING)
    model = {"batch": given.batch, "tokens": given.tokens, "width": given.width, "layers": given.layers}
    found = once(given.once, **model) if given.once else measured(given.rounds, threads=given.threads, **model)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
