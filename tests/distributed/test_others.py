"""Wrappers made otherwise, half precision, strides, layers that take no part, other noise, and a batch that is begun again."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import ddp_cases as cases
import groupclip as gc
import kinds
import other_cases
from kinds import Run
from one_process import assert_same, expected, results

SIZES = (2, 3)


@pytest.mark.parametrize("size", SIZES)
def test_no_wrapper_is_needed(told: Any, size: int) -> None:
    for found in results(told, size, "case_without_a_wrapper"):
        assert_same(found, expected(other_cases.RUN), 1e-12)


@pytest.mark.parametrize("way", ["unused", "views", "buffers"])
@pytest.mark.parametrize("size", SIZES)
def test_wrappers_that_are_made_otherwise(told: Any, size: int, way: str) -> None:
    for found in results(told, size, "case_wrapped_otherwise"):
        assert_same(found[way], expected(other_cases.RUN), 1e-12)
        assert "leave static_graph out" in found["static"]


@pytest.mark.parametrize("way", ["whole", "cut"])
@pytest.mark.parametrize("size", SIZES)
def test_strides_and_layers_that_take_no_part(told: Any, size: int, way: str) -> None:
    model, x = other_cases.images()
    engine = gc.attach(model, None, "layer-wise", None)
    engine.backward(model(x).square().sum(1))
    for found in results(told, size, "case_strides_and_idle_layers"):
        for name, p in model.named_parameters():
            want = torch.zeros_like(p.data) if p.grad is None else p.grad
            assert (found[way][name] - want).abs().max() <= 1e-12
    engine.detach()


@pytest.mark.parametrize("size", SIZES)
def test_half_precision_is_summed_in_float32(told: Any, size: int) -> None:
    run = Run("net", "uniform:2", torch.bfloat16)
    one = cases.train(kinds.build("net", torch.bfloat16), run)["sums"][0]
    for found in results(told, size, "case_half_precision"):
        assert found["summed"] == {torch.float32}
        for name, want in one.items():
            assert (found["sums"][name] - want).abs().max() <= 2.0**-7 * want.abs().max()


@pytest.mark.parametrize("size", SIZES)
def test_other_sources_of_noise(told: Any, size: int) -> None:
    """False alarms 1e-6 a check, of 3 a source."""
    first, *others = results(told, size, "case_noise_of_other_sources")
    for name in ("insecure", "hardened"):
        noise = first[name]
        assert all(torch.equal(other[name], noise) for other in others)
        assert abs(float(noise.square().mean()) - 1) < 4.9 * math.sqrt(2 / len(noise))
        for lag in (1000, 2000):  # buckets of other owners
            bound = 4.9 * math.sqrt(len(noise) - lag)
            assert abs(float(torch.dot(noise[lag:], noise[:-lag]))) < bound
            copied = noise[:1000].repeat(12)
            assert abs(float(torch.dot(copied[lag:], copied[:-lag]))) > bound
    assert "comes from a seed" in first["insecure claims"] and first["hardened claims"] == ""


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_may_begin_its_part_again(told: Any, size: int) -> None:
    for found in results(told, size, "case_one_rank_begins_its_batch_again"):
        assert found["steps"] == {"groupclip": 6, "user": 0}


def test_workers_read_the_parts(told: Any) -> None:
    read = results(told, 2, "case_workers")
    assert len(read[0]) == 6
    for parts in zip(*read, strict=True):
        assert len({len(part) for part in parts}) == 1
        rows = [row for part in parts for micro in part for row in micro]
        assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("way", ["whole", "cut"])
@pytest.mark.parametrize("size", SIZES)
def test_thresholds_move_by_all_samples(told: Any, size: int, way: str) -> None:
    want = other_cases.moved(kinds.build("net", torch.float64))
    assert want[0] != want[2]
    first, *others = results(told, size, "case_adaptive")
    assert all(other == first for other in others)
    for mine, one in zip(first[way], want, strict=True):
        assert mine == pytest.approx(one, rel=1e-6)
