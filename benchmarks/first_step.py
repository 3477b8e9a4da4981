"""Time from ``attach`` to the end of the first step, and of ``gc.check``, for RoBERTa-base with random weights; JSON.

    python benchmarks/first_step.py --batch 8 --tokens 16 32 64 --rounds 7 > docs/first-step.json

Plain and private first steps take turns in one run. Before each, what earlier ones left is collected: a full run of Python's
garbage collector takes 0.2 s beside transformers, and would meet one or the other by chance. Needs transformers.
"""

from __future__ import annotations

import argparse
import gc as garbage
import json
import os
import platform
import statistics
import time

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import groupclip as gc
from groupclip.noise.boxmuller import vectorised

SEED = 0


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).logits, y, reduction="none")


def plain(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    garbage.collect()
    start = time.perf_counter()
    losses(model, x, y).mean().backward()
    middle = time.perf_counter()
    optimizer.step()
    end = time.perf_counter()
    optimizer.zero_grad()
    return {"forward and backward": middle - start, "step": end - middle, "all": end - start}


def private(model: nn.Module, x: Tensor, y: Tensor, style: str) -> dict[str, float]:
    mechanism = gc.Mechanism(dataset_size=50_000, expected_batch_size=1_000, steps=100, noise_multiplier=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    garbage.collect()
    start = time.perf_counter()
    engine = gc.attach(model, optimizer, style, mechanism)
    engine.backward(losses(model, x, y))
    middle = time.perf_counter()
    optimizer.step()
    end = time.perf_counter()
    engine.detach()
    optimizer.zero_grad()
    return {"forward and backward": middle - start, "step": end - middle, "all": end - start}


def measure(model: nn.Module, batch: int, tokens: int, rounds: int, style: str) -> dict[str, object]:
    x, y = torch.randint(5, 50_000, (batch, tokens)), torch.randint(2, (batch,))
    plain(model, x, y), private(model, x, y, style)
    taken = [(plain(model, x, y), private(model, x, y, style)) for _ in range(rounds)]
    over = {
        what: [round(ours[what] - theirs[what], 3) for theirs, ours in taken]
        for what in ("forward and backward", "step", "all")
    }
    start = time.perf_counter()
    gc.check(model, losses, (x, y), style)
    return {
        "batch": batch,
        "tokens": tokens,
        "plain step, s": round(statistics.median(theirs["all"] for theirs, _ in taken), 3),
        "attach and first step over plain, s": {what: statistics.median(values) for what, values in over.items()},
        "each round": over,
        "gc.check, s": round(time.perf_counter() - start, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--style", default="block-wise")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(SEED)
    load = os.getloadavg()[0]
    config = transformers.RobertaConfig(vocab_size=50_265, max_position_embeddings=514, type_vocab_size=1)
    model = transformers.RobertaForSequenceClassification(config).train()
    facts = {
        "model": "RoBERTa-base, random weights",
        "style": given.style,
        "threads": given.threads,
        "seed": SEED,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "numpy": np.__version__},
        "machine": {"cpu": platform.machine(), "noise by NumPy": vectorised(), "load before": load},
        "results": [measure(model, given.batch, tokens, given.rounds, given.style) for tokens in given.tokens],
    }
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
