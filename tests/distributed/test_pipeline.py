"""Stages of a pipeline on 2 and 3 processes of gloo: what comes out is what one process has with the same groups."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import pipe_cases as cases
from ddp_cases import KEY, STEPS, plan
from groupclip.sampling.draws import drawn
from kinds import data
from one_process import TOLERANCE, Steps, assert_same, results
from oracle import clipped_sum
from pipe_cases import Run

SIZES = (2, 3)


@functools.cache
def expected(run: Run, stages: int) -> Steps:
    """Sums and weights of each step of the whole model: in float64 by the oracle, in float32 by one process."""
    model, dataset, groups = cases.build(run), data("net", run.dtype), cases.members(run, stages)
    if run.dtype == torch.float32:
        one = cases.train_whole(run, groups)
        return list(zip(one["sums"], one["weights"], strict=True))
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.SGD(named.values(), lr=0.5, momentum=0.9)
    found = []
    for step in range(STEPS):
        rows = drawn(plan(expected=run.expected), key=KEY, step=step).tolist()
        batch = tuple(tensor[rows] for tensor in dataset.tensors)
        sums = clipped_sum(model, lambda m, b: cases.losses(m(b[0]), b[1]), batch, groups, run.clip).sums
        for name, p in named.items():
            p.grad = sums[name] / run.expected
        optimizer.step()
        found.append((sums, {n: p.detach().clone() for n, p in named.items()}))
    return found


def joined(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What the stages have, as one model has it; no parameter is on two of them."""
    told: dict[str, Any] = {"sums": [], "weights": []}
    for what, steps in told.items():
        for each in zip(*[rank[what] for rank in found], strict=True):
            assert len({name for stage in each for name in stage}) == sum(map(len, each))
            steps.append({name: tensor for stage in each for name, tensor in stage.items()})
    return told


def check(told: Any, size: int, case: str, run: Run) -> list[dict[str, Any]]:
    found = [rank[run] for rank in results(told, size, case)]
    assert_same(joined(found), expected(run, size), TOLERANCE[run.dtype])
    return found


@pytest.mark.parametrize("run", cases.EVERY_STYLE, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_sums_and_steps_are_those_of_one_process(told_by_stages: Any, size: int, run: Run) -> None:
    check(told_by_stages, size, "case_every_style", run)


@pytest.mark.parametrize("run", cases.EVERY_KIND, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_every_kind_of_model(told_by_stages: Any, size: int, run: Run) -> None:
    """Frozen parts, adapters, checkpoints without re-entry, derived parameters, samples on different paths."""
    check(told_by_stages, size, "case_every_kind", run)


@pytest.mark.parametrize("run", cases.SIZES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_batches_of_every_size(told_by_stages: Any, size: int, run: Run) -> None:
    """Rows that only fill add exactly nothing, also where every gradient is lengthened to the threshold; nobody is a batch too."""
    found = check(told_by_stages, size, "case_every_size", run)
    assert all(rank["sizes"] == found[0]["sizes"] for rank in found)
    sizes = [sum(step) for step in found[0]["sizes"]]
    if run.expected == 1:
        assert 0 in sizes
    assert any(each % (cases.CHUNKS * run.rows) for each in sizes)
