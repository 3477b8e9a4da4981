"""FSDP2 (``fully_shard``) on 2 and 3 processes of gloo: what comes out is what one process has."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ddp_cases as cases
from kinds import Run
from one_process import TOLERANCE, assert_same, expected, results

SIZES = (2, 3)


@pytest.mark.parametrize("run", cases.EVERY_STYLE, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_sums_and_steps_are_those_of_one_process(told: Any, size: int, run: Run) -> None:
    for found in results(told, size, "case_cut_every_style"):
        assert_same(found[run], expected(run), TOLERANCE[run.dtype])


@pytest.mark.parametrize("run", cases.EVERY_KIND, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_every_kind_of_model(told: Any, size: int, run: Run) -> None:
    """Frozen parts, tied weights, adapters, checkpoints without re-entry, derived parameters."""
    for found in results(told, size, "case_cut_every_kind"):
        assert_same(found[run], expected(run), TOLERANCE[run.dtype])


@pytest.mark.parametrize("size", SIZES)
def test_ranks_without_samples_keep_step(told: Any, size: int) -> None:
    for rank in results(told, size, "case_cut_small_batches"):
        assert_same(rank, expected(cases.SMALL), TOLERANCE[torch.float64])


@pytest.mark.parametrize("way", ["whole", "kept", "again", "offloaded", "copies"])
@pytest.mark.parametrize("style", ["all-layer", "block-wise"])
@pytest.mark.parametrize("size", SIZES)
def test_every_way_of_cutting(told: Any, size: int, style: str, way: str) -> None:
    run = Run("net", style)
    for found in results(told, size, "case_cut_in_every_way"):
        assert_same(found[way, run], expected(run), TOLERANCE[run.dtype])


@pytest.mark.parametrize("size", SIZES)
def test_parameters_that_are_not_cut_beside_those_that_are(told: Any, size: int) -> None:
    run = Run("net", "uniform:2")
    for found in results(told, size, "case_cut_in_part"):
        assert_same(found, expected(run), TOLERANCE[run.dtype])


@pytest.mark.parametrize("size", SIZES)
def test_mixed_precision(told: Any, size: int) -> None:
    """Weights in bfloat16, with 8 bits; sums in float32, also where the policy has them in bfloat16."""
    run = Run("net", "block-wise", torch.float32)
    for found in results(told, size, "case_cut_mixed_precision"):
        assert_same(found, expected(run), 0.05)
        for sums in found["sums"]:
            assert all(total.dtype == torch.float32 for total in sums.values())
            assert any(not torch.equal(total, total.bfloat16().float()) for total in sums.values())
