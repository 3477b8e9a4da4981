"""Random programs, in which any operation meets any other: exact for every grouping, split and norm method."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle
from check_engine import between, clipped_by_engine, faults, inexact, members
from groupclip.partition.choose import partition
from models import output_square
from programs import OPERATIONS, Program, Runs, programs
from strategies import groupings, splits

CLIPS = st.sampled_from(["automatic", "abadi"])
relaxed = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}


def check(program: Program, size: int, clip: str, data: st.DataObject) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Runs(program).double()
        for p in model.parameters():
            p.data += 0.3 * torch.randn_like(p)
        batch = (torch.randn(size, program.length, program.width, dtype=torch.float64),)
    groups = partition(model, data.draw(groupings(model)))
    methods = st.sampled_from(["auto", "gram", "instantiated"])
    groups = groups.with_methods({name: data.draw(methods) for group in groups for name in groups[group]})
    norms = oracle.clipped_sum(model, output_square, batch, members(groups)).norms
    thresholds = between(norms)
    want = oracle.clipped_sum(model, output_square, batch, members(groups), clip, thresholds)
    smallest = min(n[n > 0].min().item() for n in norms.values() if (n > 0).any())
    got = clipped_by_engine(model, output_square, batch, groups, clip, thresholds, data.draw(splits(size)))
    assert faults(got, want, groups, thresholds, 1e-10 * max(1.0, 1e-4 / smallest)) == []


@settings(max_examples=40, **relaxed)
@given(programs(), st.integers(1, 5), CLIPS, st.data())
def test_random_programs(program: Program, size: int, clip: str, data: st.DataObject) -> None:
    check(program, size, clip, data)


@pytest.mark.slow
@settings(max_examples=3000, **relaxed)
@given(programs(20), st.integers(1, 8), CLIPS, st.data())
def test_many_random_programs(program: Program, size: int, clip: str, data: st.DataObject) -> None:
    check(program, size, clip, data)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("operation", [name for name, (kinds, _, _) in OPERATIONS.items() if "x" in kinds])
def test_each_operation_with_the_batch(operation: str) -> None:
    """On parameters, on what is derived from them, and on what is derived from constants too."""
    kinds = OPERATIONS[operation][0]
    derive = [("1 + v", (-1,)), ("m @ m", (-1, -2)), ("t @ m", (-2, -1))]
    for steps in ([], derive, [("t norm", (-1, -1)), ("t mean", (-1,)), ("outer", (-1, -2))]):
        for size in (1, 3, 4):
            last = (operation, tuple(-1 - (i % 2) for i in range(len(kinds))))
            program = Program((*steps, last, ("x @ m", (-1, -2))), 4, 3)
            batch = (torch.randn(size, 4, 3, generator=torch.Generator().manual_seed(size)),)
            assert inexact(Runs(program), batch) == [], (program, size)
