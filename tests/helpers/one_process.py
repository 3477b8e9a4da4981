"""What ranks found, beside what one process finds: for ``tests/distributed``."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

import ddp_cases as cases
import groupclip as gc
import kinds
from groupclip.sampling.draws import drawn
from kinds import Run
from oracle import clipped_sum

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}
Steps = list[tuple[dict[str, Tensor], dict[str, Tensor]]]


def results(told: dict[int, list[dict[str, Any]]], size: int, case: str) -> list[Any]:
    """What a case returned on each rank; it must not have failed."""
    found = [rank.get(case, {"error": "not run: an earlier case failed"}) for rank in told[size]]
    for rank, each in enumerate(found):
        assert not (isinstance(each, dict) and "error" in each), f"rank {rank}: {each['error']}"
    return found


@functools.cache
def expected(run: Run) -> Steps:
    """Sums and weights of each step: in float64 by the oracle, one sample at a time; in float32 by one process."""
    model, dataset = kinds.build(run.kind, run.dtype), kinds.data(run.kind, run.dtype)
    if run.dtype == torch.float32:
        one = cases.train(model, run)
        return list(zip(one["sums"], one["weights"], strict=True))
    groups = gc.partition(model, run.style)
    members = {group: list(groups[group]) for group in groups.names}
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.SGD(named.values(), lr=0.5, momentum=0.9)
    found = []
    for step in range(cases.STEPS):
        rows = drawn(cases.plan(expected=run.expected), key=cases.KEY, step=step).tolist()
        batch = tuple(tensor[rows] for tensor in dataset.tensors)
        sums = clipped_sum(model, kinds.losses, batch, members).sums
        for name, p in named.items():
            p.grad = sums[name] / run.expected
        optimizer.step()
        found.append((sums, {n: p.detach().clone() for n, p in named.items()}))
    return found


def assert_same(found: dict[str, Any], want: Steps, tolerance: float) -> None:
    """Clipped sums and weights of each step are those of one process, up to ``tolerance`` of the largest number of a tensor."""
    assert len(found["sums"]) == len(want)
    for step, (sums, weights) in enumerate(want):
        for what, wanted in (("sums", sums), ("weights", weights)):
            assert set(found[what][step]) == set(wanted)
            for name, tensor in wanted.items():
                off = (found[what][step][name] - tensor).abs().max()
                assert off <= tolerance * max(1, tensor.abs().max()), (step, what, name)
