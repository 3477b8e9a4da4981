"""Times that can be compared: every way takes its turn in every round of one run."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import groupclip as gc


def one_pass(model: nn.Module, losses: Callable[[], Tensor], groups: gc.Partition | str | None) -> Callable[[], None]:
    """A forward and backward pass: of plain training (None), or with gradients clipped in groups.

    Args:
        losses: makes the forward pass, ``[B]``. It is made once here, so that lessons and caches aren't timed.
    """
    engine = None if groups is None else gc.attach(model, None, groups, None)

    def run() -> None:
        found = losses()
        if engine is None:
            found.sum().backward()
        else:
            engine.backward(found)
        with torch._C.DisableTorchFunctionSubclass():
            for p in model.parameters():
                p.grad = None

    run()
    return run


def interleaved(
    runs: dict[str, Callable[[], None]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each way in each round, a round beginning with another way each time."""
    order, times = list(runs), {way: [] for way in runs}
    for turn in range(rounds):
        start = turn % len(order)
        for way in order[start:] + order[:start]:
            begun = clock()
            runs[way]()
            times[way].append(clock() - begun)
    return times
