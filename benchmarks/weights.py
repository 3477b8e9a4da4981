"""What the weights' gradients alone take, in the forms that styles of groups give them: the work that no engine can leave out.

One backward pass of the attached model shows every use of a weight with its operands. Then each is timed by itself, in turns: the
one product that plain training makes of it; the norms and the weighted sum where its group holds that weight alone (layer-wise);
and where its group's factors wait for other layers (all-layer).
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from tiny import Case, trainable
from torch import Tensor

import groupclip as gc
from groupclip.autograd.gate import Gate
from groupclip.persample.base import PerSample
from groupclip.persample.convolution import Convolution
from groupclip.persample.norms import AUTO, LAST
from groupclip.persample.outer import Outer
from groupclip.persample.streamed import Streamed

Timed = Callable[[], object]


def uses(case: Case) -> list[Outer | Convolution]:
    """Every use of a weight of a linear layer or a convolution, in one backward pass."""
    found: list[Outer | Convolution] = []
    book = Gate.book

    def booked(self: Gate, slot: Any, part: Any, grads: PerSample) -> None:
        if isinstance(grads, (Outer, Convolution)):
            found.append(grads)
        book(self, slot, part, grads)

    model = copy.deepcopy(case.model)
    engine = gc.attach(model, None, "all-layer", None)
    Gate.book = booked
    try:
        engine.backward(case.losses(model))
    finally:
        Gate.book = book
        engine.detach()
    return found


def anew(use: Outer | Convolution) -> Outer | Convolution:
    """The same use, of which no norm is known."""
    return Outer(use.a, use.g, use.inputs_first) if isinstance(use, Outer) else Convolution(use.x, use.g, use.geometry)


def plain(use: Outer | Convolution) -> Tensor:
    """The product of plain training."""
    if isinstance(use, Convolution):
        return use.geometry.weight_gradient(use.x.flatten(0, 1), use.g.flatten(0, 1), use._shape)
    a, g = use.a.flatten(0, 1), use.g.flatten(0, 1)
    return a.t() @ g if use.inputs_first else g.t() @ a


def alone(use: Outer | Convolution, factors: Tensor) -> None:
    """Norms and weighted sum where the factors wait for nothing else."""
    kept = anew(use).settle(LAST)
    if type(kept) is not Streamed:
        kept.square_norms()
        kept.weighted_sum(factors)
        return
    total: Tensor | None = None
    for which, grads in kept.blocks():
        weights = factors[which] / (1 + grads.square_norms())
        if total is None:
            total = grads.weighted_sum(weights)
        else:
            grads.add_to(total, weights)


def waiting(use: Outer | Convolution, factors: Tensor) -> None:
    """Norms and weighted sum where the factors wait for other layers."""
    kept = anew(use).settle(AUTO)
    kept.square_norms()
    kept.weighted_sum(factors)


def once(work: Timed) -> float:
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


@torch.no_grad()
def measured(found: list[Outer | Convolution], rounds: int) -> dict[str, float]:
    """Milliseconds of all uses together: of each way the sum of medians."""
    sums = {"plain": 0.0, "layer-wise": 0.0, "all-layer": 0.0}
    for use in found:
        factors = torch.rand(use.num_samples)
        ways: dict[str, Timed] = {
            "plain": lambda use=use: plain(use),
            "layer-wise": lambda use=use, f=factors: alone(use, f),
            "all-layer": lambda use=use, f=factors: waiting(use, f),
        }
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for n in range(rounds + 1):
            for way, work in ways.items():
                ms = once(work)
                if n:
                    taken[way].append(ms)
        for way, times in taken.items():
            sums[way] += statistics.median(times)
    return {way: round(ms, 3) for way, ms in sums.items()}


def step(case: Case, rounds: int) -> float:
    """Milliseconds of a plain step; the median."""
    model = copy.deepcopy(case.model)
    optimizer = torch.optim.SGD(trainable(model), lr=1e-3)

    def work() -> None:
        case.losses(model).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    work()
    return round(statistics.median(once(work) for _ in range(rounds)), 3)


def weights(case: Case, rounds: int) -> dict[str, float]:
    """What the page shows of one model, in ms."""
    before = step(case, rounds)
    found = measured(uses(case), rounds)
    return found | {"plain step": round(statistics.median([before, step(case, rounds)]), 3)}
