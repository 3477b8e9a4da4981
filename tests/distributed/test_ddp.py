"""DistributedDataParallel on 2 and 3 processes of gloo: what comes out is what one process has."""

from __future__ import annotations

import math
from typing import Any

import pytest
import scipy.stats
import torch
from torch import Tensor

import ddp_cases as cases
import groupclip as gc
from kinds import Run
from one_process import TOLERANCE, assert_same, expected, results

SIZES = (2, 3)


@pytest.mark.parametrize("run", cases.EVERY_STYLE, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_sums_and_steps_are_those_of_one_process(told: Any, size: int, run: Run) -> None:
    for found in results(told, size, "case_every_style"):
        assert_same(found[run], expected(run), TOLERANCE[run.dtype])


@pytest.mark.parametrize("run", cases.EVERY_KIND, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_every_kind_of_model(told: Any, size: int, run: Run) -> None:
    """Frozen parts, tied weights, adapters, checkpoints without re-entry, derived parameters."""
    for found in results(told, size, "case_every_kind"):
        assert_same(found[run], expected(run), TOLERANCE[run.dtype])


@pytest.mark.parametrize("size", SIZES)
def test_ranks_without_samples_keep_step(told: Any, size: int) -> None:
    found = results(told, size, "case_small_batches")
    assert any(0 in sizes for rank in found for sizes in rank["sizes"])
    for rank in found:
        assert_same(rank, expected(cases.SMALL), TOLERANCE[torch.float64])


@pytest.mark.parametrize("size", SIZES)
def test_noise_is_once_on_every_coordinate_and_the_same_on_all_ranks(told: Any, size: int) -> None:
    """False alarms: 1e-6 a check, of 11 a size (two-sided)."""
    first, *others = results(told, size, "case_noise")
    for other in others:
        for mine, theirs in zip(first["noise"] + first["weights"], other["noise"] + other["weights"], strict=True):
            assert torch.equal(mine, theirs)
    weight, bias = first["stds"]
    steps = [torch.cat([noise[:60_000] / weight, noise[60_000:] / bias]).double() for noise in first["noise"]]
    for noise in steps:
        assert is_standard(noise) and is_uncorrelated(noise)
        assert not is_standard(2 * noise) and not is_standard(noise / 2)
        assert not is_standard(noise * math.sqrt(size))  # the sum of a noise on every rank
        copied = torch.cat([noise[:1000].repeat(60), noise[60_000:]])  # of one key on all ranks
        assert not is_uncorrelated(copied)
    for a, b in ((0, 1), (1, 2)):
        assert abs(float(torch.dot(steps[a], steps[b]))) < 4.9 * math.sqrt(len(steps[a]))
        assert abs(float(torch.dot(steps[a], steps[a] + 0.05 * steps[b]))) > 4.9 * math.sqrt(len(steps[a]))


def is_standard(noise: Tensor) -> bool:
    """Whether the mean square of normals is 1, and so the standard deviation, within 1.5 % here; 1e-6."""
    return abs(float(noise.square().mean()) - 1) < 4.9 * math.sqrt(2 / len(noise))


def is_uncorrelated(noise: Tensor) -> bool:
    """Whether what lies 1,000 and 2,000 coordinates apart, in other owners' buckets, has nothing in common; 1e-6 each."""
    return all(
        abs(float(torch.dot(noise[lag:], noise[:-lag]))) < 4.9 * math.sqrt(len(noise) - lag) for lag in (1000, 2000)
    )


@pytest.mark.parametrize("size", SIZES)
def test_there_is_one_ledger(told: Any, size: int) -> None:
    first, *others = results(told, size, "case_ledger")
    assert first["steps"] == {"groupclip": 6, "user": 0}
    assert first["epsilon"] == first["planned"] and first["averages again"]
    for other in others:
        assert other["state"] == first["state"] and other["epsilon"] == first["epsilon"]
        assert all(torch.equal(a, b) for a, b in zip(first["weights"], other["weights"], strict=True))
    assert all(not name.startswith("module.") for name in first["state"]["partition"].split('"'))


@pytest.mark.parametrize("size", SIZES)
def test_a_batch_is_dealt_in_parts_that_follow_its_law(told: Any, size: int) -> None:
    """Chi-squared of the inclusion of 30 samples in 800 batches, and of the sizes; false alarms 1e-6 each."""
    ranks_ = results(told, size, "case_dealt")
    counts = torch.zeros(30)
    sizes = []
    for parts in zip(*ranks_, strict=True):
        assert len({len(part) for part in parts}) == 1  # all run in step
        rows = [[row for micro in part for row in micro] for part in parts]
        assert max(map(len, rows)) - min(map(len, rows)) <= 1
        together = [row for part in rows for row in part]
        assert len(set(together)) == len(together)  # nobody is with two ranks
        counts[together] += 1
        sizes.append(len(together))
    assert follows_the_law(counts, torch.tensor(sizes, dtype=torch.float64))
    assert not follows_the_law(counts, torch.full((800,), 9.0, dtype=torch.float64))  # batches of one size
    counts[:10] += 60  # some samples are drawn more often
    assert not follows_the_law(counts, torch.tensor(sizes, dtype=torch.float64))
    one = gc.Mechanism(dataset_size=30, expected_batch_size=9, steps=800, noise_multiplier=1.0)
    assert one.sample_rate == 0.3


def follows_the_law(counts: Tensor, sizes: Tensor) -> bool:
    """Whether 30 counts are binomial (800, 0.3), and 800 sizes binomial (30, 0.3) by their variance; 1e-6 each."""
    inclusion = float(((counts - 240) ** 2 / (800 * 0.3 * 0.7)).sum())
    variance = float(((sizes - 9) ** 2).sum() / (30 * 0.3 * 0.7))
    low, high = scipy.stats.chi2.ppf([5e-7, 1 - 5e-7], 800)
    return inclusion < scipy.stats.chi2.ppf(1 - 1e-6, 30) and low * 0.97 < variance < high * 1.03


@pytest.mark.parametrize("size", SIZES)
def test_a_users_samples_stay_together(told: Any, size: int) -> None:
    for parts in zip(*results(told, size, "case_dealt_users"), strict=True):
        assert len({len(part) for part in parts}) == 1
        users = [tuple(user) for part in parts for micro in part for user in micro]
        assert len(set(users)) == len(users)
        assert all(user == (user[0], user[0] + 1, user[0] + 2) and user[0] % 3 == 0 for user in users)


@pytest.mark.parametrize("size", SIZES)
def test_what_is_refused_at_attach_is_refused_on_all_ranks(told: Any, size: int) -> None:
    for found in results(told, size, "case_refused_at_attach"):
        assert "don't agree on the thresholds" in found["thresholds"]
        assert "don't agree on the plan" in found["plan"]
        assert "don't agree on the weights" in found["weights"]
        assert "don't agree on the clip function" in found["one rank"]
        assert "Leave noise= out" in found["key"] and "Leave noise= out" in found["own noise"]
        assert "smaller thresholds" in found["large"]
        assert "communication hook" in found["hook"]
        assert "around a part of the model" in found["part"] and "wrap the whole model" in found["part"]
        assert found["plain"]


@pytest.mark.parametrize("size", SIZES)
def test_a_step_is_taken_by_all_ranks_or_by_none(told: Any, size: int) -> None:
    every = results(told, size, "case_refused_steps")
    for rank, found in enumerate(every):
        assert ("isn't what the last backward pass left there" in found["scaled"]) is True
        assert found["scaled"].startswith("PrivacyViolation: rank 1 refused the step") is (rank != 1)
        assert "don't agree on the parameters that train" in found["frozen"]
        assert found["steps"] == 0 and not found["moved"]
        assert found["after"] == {"groupclip": 1, "user": 0}
        assert every[1]["their sizes"][:2] == [1, 1]  # and it left the first one out
        assert found["left out"] == {"groupclip": 1, "user": 1}
        assert "was told to average gradients" in found["averaging"]


@pytest.mark.parametrize("size", SIZES)
def test_batches_that_each_rank_drew_for_itself_are_refused(told: Any, size: int) -> None:
    for found in results(told, size, "case_batches_of_each_rank"):
        assert "a sample may be in the batches of several ranks" in found["step"]
        assert found["steps"] == 0


@pytest.mark.parametrize("size", SIZES)
def test_the_right_order_is_told(told: Any, size: int) -> None:
    for found in results(told, size, "case_wrong_order"):
        assert "The order is: ddp = DistributedDataParallel(model), then engine" in found["late"]
        assert f"now torch.distributed has {size} processes" in found["early"] and found["steps"] == 0


@pytest.mark.parametrize("size", SIZES)
def test_clipping_alone_is_left_to_the_wrapper(told: Any, size: int) -> None:
    model = cases.net(torch.float64)
    engine = gc.attach(model, None, "all-layer", None)
    engine.backward(cases.losses(model, cases.data(torch.float64)[: 2 * size]))
    for found in results(told, size, "case_clipping_alone"):
        for name, p in model.named_parameters():
            # DistributedDataParallel divides by the number of processes
            torch.testing.assert_close(size * found[name], p.grad, rtol=1e-12, atol=1e-12)
    engine.detach()
