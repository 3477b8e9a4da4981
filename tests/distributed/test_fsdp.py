"""FSDP2 (``fully_shard``) on 2 and 3 processes of gloo: what comes out is what one process has."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ddp_cases as cases
import kinds
import ranks
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


@pytest.mark.parametrize("size", SIZES)
def test_first_batches_without_any_sample(told: Any, size: int) -> None:
    """Chance has them so: torch can't begin anew what no pass has begun, and needn't."""
    first, *others = results(told, size, "case_cut_none_at_first")
    assert first["moved"] and first["steps"] == {"groupclip": 0, "user": 3}
    for other in others:
        assert all(torch.equal(first["weights"][name], kept) for name, kept in other["weights"].items())


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
    """Weights in bfloat16, with 8 bits; sums in float32, also where the policy has them in bfloat16.

    What is off comes from the passes: it is off as much by one process in bfloat16, whose sums are these but for one rounding.
    """
    run = Run("net", "block-wise", torch.float32)
    one = cases.train(kinds.build("net", torch.bfloat16), Run("net", "block-wise", torch.bfloat16))["sums"][0]
    for found in results(told, size, "case_cut_mixed_precision"):
        assert_same(found, expected(run), 0.02)
        for name, want in one.items():
            assert (found["sums"][0][name] - want.float()).abs().max() <= 2.0**-7 * want.abs().max()
        for sums in found["sums"]:
            assert all(total.dtype == torch.float32 for total in sums.values())
            assert any(not torch.equal(total, total.bfloat16().float()) for total in sums.values())


@pytest.mark.parametrize("size", SIZES)
def test_the_users_own_backward(told: Any, size: int) -> None:
    for found in results(told, size, "case_cut_by_loss_backward"):
        assert_same(found, expected(Run("net", "uniform:2")), TOLERANCE[torch.float64])


@pytest.mark.parametrize("way", ["cut", "copies"])
@pytest.mark.parametrize("size", SIZES)
def test_noise_is_once_on_every_coordinate(told: Any, size: int, way: str) -> None:
    """Of shards by their owners, and the same on all copies of a shard; false alarms 1e-6 a check, of 8 (two-sided)."""
    first, *others = results(told, size, "case_cut_noise")
    assert first[way + " steps"] == {"groupclip": 3, "user": 0}
    for other in others:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(first[way], other[way], strict=True))
    shard = 60_000 // size
    steps = [noise.double() for noise in first[way]]
    for noise in steps:
        assert is_standard(noise) and is_uncorrelated(noise, shard)
        assert not is_standard(noise * 2) and not is_standard(noise / 2) and not is_standard(noise * math.sqrt(size))
        assert not is_uncorrelated(noise[:shard].repeat(size), shard)  # one key in all owners
    assert is_uncorrelated(torch.cat(steps[:2]), 60_000)


def is_standard(noise: Tensor) -> bool:
    """Whether the mean square of normals is 1; 1e-6."""
    return abs(float(noise.square().mean()) - 1) < 4.9 * math.sqrt(2 / len(noise))


def is_uncorrelated(noise: Tensor, lag: int) -> bool:
    """Whether coordinates that far apart have nothing in common; 1e-6."""
    return abs(float(torch.dot(noise[lag:], noise[:-lag]))) < 4.9 * math.sqrt(len(noise) - lag)


@pytest.mark.parametrize("size", SIZES)
def test_what_is_refused_is_refused_on_all_ranks(told: Any, size: int) -> None:
    for rank, found in enumerate(results(told, size, "case_cut_refused")):
        assert "fully_shard) comes before groupclip.attach" in found["late"]
        assert "tensor parallelism" in found["tensor parallel"] and "fully_shard" in found["tensor parallel"]
        assert "'head.weight' isn't what the last backward pass left there" in found["scaled"]
        assert found["scaled"].startswith("PrivacyViolation: rank 1 refused the step") is (rank != 1)
        assert "an optimizer that wasn't attached" in found["another optimizer"]
        assert "isn't what the last backward pass left there" in found["clipped again"]
        assert "engine.backward(losses)" in found["not of the losses"]
        assert "'blocks.0.inner.weight', not clipped" in found["penalty"]
        assert "beside the model's forward pass" in found["layer by itself"]
        assert (found["steps"], found["after"]) == (0, 1)
        assert found["plain"] and not found["trains without an engine"]
        assert "noise_multiplier=0 adds no noise" in found["clipping alone"]
        assert "samples take different paths" in found["paths"] and "DistributedDataParallel" in found["paths"]


NAMES = {"DataParallel": "nn.DataParallel", "DeepSpeed": "deepspeed's DeepSpeedEngine", "FSDP1": "FSDP1"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_other_wrappers_are_refused_by_name(told: Any, size: int, name: str) -> None:
    for found in results(told, size, "case_wrappers"):
        assert NAMES[name] in found[name]
        assert "use torch.nn.parallel.DistributedDataParallel, or torch.distributed.fsdp.fully_shard" in found[name]


@pytest.mark.slow
def test_four_ranks_of_whom_two_have_a_copy_together(tmp_path: Path) -> None:
    """False alarms 1e-6 each, of 3."""
    found = ranks.run(4, "fsdp_cases", tmp_path, ("case_cut_in_every_way", "case_cut_noise"))
    for style in ("all-layer", "block-wise"):
        run = Run("net", style)
        for rank in found:
            assert_same(rank["case_cut_in_every_way"]["copies", run], expected(run), TOLERANCE[run.dtype])
    noise = [rank["case_cut_noise"]["copies"] for rank in found]
    for here, there in ((0, 2), (1, 3)):
        assert all(torch.equal(a, b) for a, b in zip(noise[here], noise[there], strict=True))
    for first, second in zip(noise[0], noise[1], strict=True):
        assert is_uncorrelated(torch.cat([first, second]).double(), len(first))
