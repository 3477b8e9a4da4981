"""Runs of 2 and 3 processes: one folder, one journal, one ledger; stopped, failed and killed, they go on with any number."""

import json
from pathlib import Path

import pytest
import torch

import ranks
import run_cases as cases
from groupclip.run import resume, start
from groupclip.run.journal import read_journal
from one_process import results
from small_runs import REQUEST, STEPS

CASES = tuple(name for name in vars(cases) if name.startswith("case_"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("company")


def found_by(size: int, folder: Path, names: tuple[str, ...] = CASES):
    (folder / str(size)).mkdir()
    return ranks.run(size, "run_cases", folder / str(size), names, patience=120)


@pytest.fixture(scope="module")
def those(folder):
    """Three processes, and two that go on with a run of theirs."""
    return {3: found_by(3, folder), 2: found_by(2, folder, ("case_stopped",))}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    return folder, {2: found_by(2, folder)}


@pytest.fixture(params=[3, pytest.param(2, marks=pytest.mark.slow)])
def size(request):
    return request.param


@pytest.fixture
def told(request, size, folder, those):
    """The folder of so many processes, and what they found."""
    return (folder, those) if size == 3 else request.getfixturevalue("two")


@pytest.fixture(scope="module")
def alone(folder):
    return start(REQUEST, folder / "alone").train()


def privacy_in(out):
    return json.loads((out / "release" / "privacy.json").read_text())


def test_one_run_one_folder_one_record(told, alone, size):
    folder, found = told
    out = folder / str(size) / "whole"
    first, *others = results(found, size, "case_whole")
    assert (first["steps"], first["updates"], first["epsilon"]) == (STEPS, STEPS, alone.epsilon)
    assert first["test_accuracy"] is not None
    assert privacy_in(out) == privacy_in(alone.out)
    assert [row["step"] for row in cases.rows_of(out)] == list(range(1, STEPS + 1))
    assert sorted(p.name for p in out.iterdir()) == ["metrics.jsonl", "release", "report.html", "run.yaml"]
    for other in others:
        assert torch.equal(other["weights"], first["weights"])
        assert (other["steps"], other["epsilon"], other["test_accuracy"]) == (STEPS, alone.epsilon, None)


def test_stopped_on_3_it_goes_on_on_2_and_on_1_to_the_same_ledger(those, folder, alone):
    for size, step in ((3, 3), (2, 5)):
        found = results(those, size, "case_stopped")
        for rank in found:
            assert f"stopped after step {step} of {STEPS}" in rank["said"] and rank["steps"] == step
            assert torch.equal(rank["ended"], found[0]["ended"])
    assert torch.equal(those[2][0]["case_stopped"]["began"], those[3][0]["case_stopped"]["ended"])
    outcome = resume(folder / "stopped").train()
    assert (outcome.steps, outcome.updates, outcome.epsilon) == (STEPS, STEPS, alone.epsilon)
    assert privacy_in(outcome.out) == privacy_in(alone.out)


def test_all_begin_at_the_first_ones_pretrained_weights(told, size):
    first, *others = results(told[1], size, "case_pretrained")
    assert first["moved"] and all(torch.equal(other["weights"], first["weights"]) for other in others)


def test_nobody_else_gets_into_the_folder(told, size):
    first, *others = results(told[1], size, "case_locked")
    (said,) = first["said"]
    assert "another process is training" in said and ".lock" not in first["after"]
    assert all(other["said"] == [] for other in others)  # rows are told where they are kept


def test_what_one_is_refused_all_are(told, size):
    for rank, found in enumerate(results(told[1], size, "case_refused")):
        assert "don't agree on the settings" in found["settings"]
        assert ("nowhere.csv" in found["data"]) and (found["data"].startswith("PrivacyViolation: rank 1") is (rank != 1))
        assert "isn't empty" in found["used"] and "there is no folder" in found["nothing"]
        assert not {"a", "b", "c"} & set(found["left"])


def test_a_part_that_cannot_be_read_ends_the_run_in_all_and_costs_one_step(told, size):
    for rank, found in enumerate(results(told[1], size, "case_unreadable")):
        assert f"step {found['failed']} failed" in found["said"] and "the disk is gone" in found["said"]
        assert ("rank 1 refused" in found["said"]) is (rank != 1)
        assert found["failed"] > 1 and found["updates"] == found["failed"] - 1
        assert found["lost"] == ((found["failed"], found["failed"]),)
        assert (found["again"]["steps"], found["again"]["updates"]) == (STEPS, STEPS - 1)


def test_a_step_that_cannot_be_charged_is_taken_by_nobody(told, size):
    for rank, found in enumerate(results(told[1], size, "case_full_disk")):
        assert ("step 3 failed: rank 0 refused charging a step" in found["said"]) is (rank != 0)
        assert "no space left on the disk" in found["said"] and found["steps"] == 2
        assert found["again"]["steps"] == STEPS


def test_a_budget_is_charged_once_for_all(told, size):
    for rank, found in enumerate(results(told[1], size, "case_on_a_budget")):
        assert found.pop("entries") == (1 if rank == 0 else None)  # of the record of the rank that charges it
        assert found == {"half": [(2, STEPS, True)], "whole": [(STEPS, False)]}


@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_process_leaves_a_journal_that_charges_its_step(tmp_path, alone, lost):
    """Killed when a step is counted and before it is applied: the others don't apply it either."""
    found = ranks.run(2, "killed_cases", tmp_path, (f"case_rank_{lost}_is_killed",), patience=60)
    assert found[lost] == {}
    said = found[1 - lost][f"case_rank_{lost}_is_killed"]
    assert said["said"].startswith("RunFailed: step 3 failed") and not said["moved"]
    assert read_journal(tmp_path / "run" / "resume" / "ledger.jsonl") == 3
    outcome = resume(tmp_path / "run").train()
    assert (outcome.steps, outcome.epsilon) == (STEPS, alone.epsilon)
    assert outcome.updates < STEPS
