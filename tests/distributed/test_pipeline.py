"""Stages of a pipeline on 2 and 3 processes of gloo: what comes out is what one process has with the same groups."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pipe_cases as cases
import ranks
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
    model, dataset, groups = cases.build(run), cases.data_of(run), cases.members(run, stages)
    if run.dtype == torch.float32:
        one = cases.train_whole(run, groups)
        return list(zip(one["sums"], one["weights"], strict=True))
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.SGD(named.values(), lr=0.5, momentum=0.9)
    found = []
    for step in range(STEPS):
        rows = drawn(plan(expected=run.expected), key=KEY, step=step).tolist()
        batch = tuple(tensor[rows] for tensor in dataset.tensors)
        sums = clipped_sum(model, lambda m, b: cases.of_whole(run, m, *b), batch, groups, run.clip).sums
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
    """Frozen parts, adapters, checkpoints without re-entry, derived parameters, different paths; several tensors, out of order."""
    check(told_by_stages, size, "case_every_kind", run)


@pytest.mark.parametrize("run", cases.SIZES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_batches_of_every_size(told_by_stages: Any, size: int, run: Run) -> None:
    """Rows that only fill add exactly nothing, also where every gradient is lengthened to the threshold, or isn't finite in a row
    that they repeat; nobody is a batch too.
    """
    found = check(told_by_stages, size, "case_every_size", run)
    assert all(rank["sizes"] == found[0]["sizes"] for rank in found)
    sizes = [sum(step) for step in found[0]["sizes"]]
    if run.expected == 1:
        assert 0 in sizes
    assert any(each % (cases.CHUNKS * run.rows) for each in sizes)


@pytest.mark.parametrize("size", SIZES)
def test_noise_counts_the_thresholds_of_all_stages(told_by_stages: Any, size: int) -> None:
    """Standard deviations within 1.4 % on the coordinates of each stage; false alarms 1e-6 a check, of 24 (two-sided)."""
    found = results(told_by_stages, size, "case_noise")
    thresholds = cases.thresholds_of(size)
    whole = 2.0 * math.hypot(*thresholds.values())
    for index, rank in enumerate(found):
        assert rank["stds"] == {name: pytest.approx(whole) for name in thresholds}  # as one process has them
        assert rank["own"] == [f"stage{index}/all"] and rank["steps"] == {"groupclip": 3, "user": 0}
        for noise in rank["noise"]:
            unit = noise.double() / whole
            assert is_standard(unit)
            assert not is_standard(unit * 3 / math.hypot(*thresholds.values()))  # of one stage alone
            assert not is_standard(unit * 2) and not is_standard(unit * 0.96)
    for step in range(3):
        for here in range(size):
            for there in range(here):
                mine, theirs = found[here]["noise"][step].double() / whole, found[there]["noise"][step].double() / whole
                assert are_uncorrelated(mine, theirs)
                assert not are_uncorrelated(mine, mine) and not are_uncorrelated(mine, theirs + 0.05 * mine)
    assert are_uncorrelated(*[noise.double() / whole for noise in found[0]["noise"][:2]])


def is_standard(noise: Tensor) -> bool:
    """Whether the mean square of 60,000 normals is 1, within 2.8 %; 1e-6."""
    return abs(float(noise.square().mean()) - 1) < 4.9 * math.sqrt(2 / len(noise))


def are_uncorrelated(first: Tensor, second: Tensor) -> bool:
    """Whether the noise of two stages, or steps, has nothing in common; 1e-6."""
    return abs(float(torch.dot(first, second))) < 4.9 * math.sqrt(len(first))


@pytest.mark.parametrize("size", SIZES)
def test_the_keys_of_other_stages_do_not_matter(told_by_stages: Any, size: int) -> None:
    for index, (first, second) in enumerate(results(told_by_stages, size, "case_noise_of_own_keys")):
        assert torch.equal(first[0], second[0]) is (index == 0)


@pytest.mark.parametrize("size", SIZES)
def test_there_is_one_ledger(told_by_stages: Any, size: int) -> None:
    first, *others = results(told_by_stages, size, "case_ledger")
    assert first["steps"] == {"groupclip": 6, "user": 0} and first["epsilon"] == first["planned"]
    names = [f"stage{index}/" for index in range(size)]
    assert sorted({group[:7] for group in first["stds"]}) == names
    assert f"uniform:2 in {size} stages" in first["statement"]
    for other in others:
        assert other["state"] == first["state"] and other["statement"] == first["statement"]
    assert all(rank["plain"] and rank["torch's again"] for rank in (first, *others))


@pytest.mark.parametrize("size", SIZES)
def test_a_schedule_evaluates_between_steps(told_by_stages: Any, size: int) -> None:
    *_, (found, _) = evaluated = [rank["evaluated"] for rank in results(told_by_stages, size, "case_ledger")]
    model = cases.build(Run())
    model.load_state_dict({name: weight for _, weights in evaluated for name, weight in weights.items()})
    assert torch.allclose(found, model(data("net", torch.float64).tensors[0][:6]), atol=1e-12)
    assert not found.requires_grad


@pytest.mark.parametrize("size", SIZES)
def test_thresholds_move_as_in_one_process(told_by_stages: Any, size: int) -> None:
    one = cases.moved_whole(size)
    for found in results(told_by_stages, size, "case_thresholds_move"):
        for mine, theirs in zip(found, one, strict=True):
            assert mine == {group: pytest.approx(bound, rel=1e-6) for group, bound in theirs.items()}
    assert len(set(one[-1].values())) > 1  # they moved apart


@pytest.mark.parametrize("size", SIZES)
def test_a_state_goes_on_and_a_budget_is_charged_once(told_by_stages: Any, size: int) -> None:
    found = results(told_by_stages, size, "case_goes_on")
    assert all(rank["steps"] == {"groupclip": 6, "user": 0} for rank in found)
    assert all(std > 1 for rank in found for std in rank["stds"].values())  # hardened noise pays for its rounding
    assert [rank["charged"] for rank in found] == [[2], *[[]] * (size - 1)]


@pytest.mark.parametrize("size", SIZES)
def test_what_is_refused_at_attach_is_refused_on_all_ranks(told_by_stages: Any, size: int) -> None:
    for found in results(told_by_stages, size, "case_refused_at_attach"):
        assert "the ranks are at different places" in found["forgotten"] and "its stage of a pipeline" in found["forgotten"]
        assert "the ranks are at different places" in found["without"] and "on batches" in found["without"]
        for name in ("thresholds", "plan", "clip"):
            assert f"don't agree on the {name}" in found[name]
        assert "missing: ['stage1/all'" in found["one stage's thresholds"]
        assert "clip='nothing' is unknown" in found["one rank"]
        for name in ("several a rank", "another rank's"):
            assert "one stage on each rank" in found[name]
        assert "stage.submod isn't the model" in found["another module's"]
        assert "stage=Traced: it must be a PipelineStage" in found["of their own"]
        assert "wrapped by DistributedDataParallel" in found["wrapped"] and "dw_builder" in found["weights by hand"]
        assert "noise_multiplier=0" in found["no plan"] and "no parameter of this stage trains" in found["nothing trains"]
        assert "views=2" in found["views"] and "loss_reduction='mean'" in found["reduction"]
        assert "Leave noise= out" in found["key"] and "bands=1" in found["bands"]
        assert found["right"] == "" and found["plain"]


@pytest.mark.parametrize("size", SIZES)
def test_what_no_rank_runs(told_by_stages: Any, size: int) -> None:
    for rank, found in enumerate(results(told_by_stages, size, "case_refused_schedules")):
        assert "the engine has no stage" in found["no stage"]
        assert "ScheduleInterleaved1F1B: it must be torch's ScheduleGPipe or Schedule1F1B" in found["interleaved"]
        assert "no loss_fn" in found["no loss"] and "rows=0" in found["no rows"]
        assert "don't agree on rows=" in found["other rows"] and "don't agree on its micro-batches" in found["other micro-batches"]
        assert "of another stage" in found["another stage's"] and "keep one PrivateSchedule" in found["another schedule"]
        assert "used outside a call of the model" in found["by hand"]
        assert "has run before this engine was attached" in found["used"]
        for name in ("torch's", "by itself", "a function"):
            assert "is a stage of a pipeline, and it was called by itself" in found[name]
        for name in ("rows of another shape", "others", "fewer", "other labels"):
            assert found[name].startswith("PrivacyViolation: rank 1 has other samples than rank 0")
        assert "tensors of [4, 5] rows" in found["lengths"] and "takes inputs and target=" in found["no inputs"]
        assert "schedule.eval" in found["without gradients"] and "of one size" in found["other shapes"]
        assert "kwargs_chunk_spec=" in found["cut otherwise"]
        assert "lie in objects that torch" in found["not cut"] and "is a list as long as the batch (5)" in found["a list"]
        assert "no mean over the rows" in found["mixed"] and "failed half-way" in found["mixed step"]
        assert found["nothing"] and found["steps"] == 0
        for name in ("scaled", "scaled step"):
            assert "isn't what the last backward pass left there" in found[name]
            assert found[name].startswith("PrivacyViolation: rank 1 refused") is (rank != 1)


@pytest.mark.parametrize("size", SIZES)
def test_every_stage_takes_all_of_one_draw(told_by_stages: Any, size: int) -> None:
    for found in results(told_by_stages, size, "case_refused_batches"):
        assert "give groupclip.logical_batches dealt=False" in found["dealt"]
        assert found["of their own"] == {"groupclip": 0, "user": 1}
        number, steps = found["left out"]
        assert number > 0 and steps["user"] == 2
        assert "isn't this rank's part" in found["whole"] and "leave padded out" in found["padded"]


def lost(case: str, folder: Path) -> list[Any]:
    return [rank[case] for rank in ranks.run(2, "pipe_lost_cases", folder, (case,), patience=8)]


def test_a_stage_that_fails_in_a_schedule_ends_the_step_for_all(tmp_path: Path) -> None:
    first, last = lost("case_reduced_loss", tmp_path)
    assert "pass reduction='none' to the loss function" in last["pass"]
    assert "RuntimeError" in first["pass"]  # torch's own, after the group's timeout
    for found in (first, last):
        assert found["step"] and found["steps"] == 1 and not found["moved"]


def test_outputs_that_do_not_fill_the_next_stages_memory_are_not_sent(tmp_path: Path) -> None:
    first, last = lost("case_other_outputs", tmp_path)
    assert "outputs are torch.bfloat16 (2, 4, 6), and the next stage receives torch.float32 (2, 4, 6)" in first["pass"]
    assert "RuntimeError" in last["pass"]
    assert all(found["step"] and found["steps"] == 1 for found in (first, last))


def test_what_goes_from_stage_to_stage_has_the_sample_in_front(tmp_path: Path) -> None:
    found = lost("case_sideways", tmp_path)
    assert found[0]["pass"].startswith("UnsupportedOperation") and "RuntimeError" in found[1]["pass"]
    assert all(rank["grad"] is None for rank in found)
