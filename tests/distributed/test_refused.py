"""What one rank is refused before the ranks meet, all are refused at once: nobody waits for the group's timeout."""

from __future__ import annotations

from typing import Any

import pytest

import ranks
from one_process import results

Told = dict[int, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def those(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Three ranks with little patience: a rank that waits for another fails soon."""
    return {3: ranks.run(3, "refused_cases", tmp_path_factory.mktemp("refused"), patience=40)}


def assert_refused(those: Told, case: str, what: str, named: str, reason: str, name: str) -> None:
    """Rank 1 has its own error; the others' name the rank, what it is about, and rank 1's reason."""
    for rank, found in enumerate(results(those, 3, case)):
        assert reason in found[name], (rank, found[name])
        assert (f"PrivacyViolation: rank 1 refused {what}" in found[name]) is (rank != 1), (rank, found[name])
        assert found[name].startswith(named if rank == 1 else "PrivacyViolation")


@pytest.mark.parametrize(
    ("name", "named", "reason"),
    [
        ("groups", "ValueError", "nothing-wise"),
        ("clip", "ValueError", "nothing"),
        ("norm", "PrivacyViolation", "BatchNorm1d in training mode"),
        ("optimizer", "CoverageError", "optimizer"),
        ("noise", "TypeError", "is no source of noise"),
        ("built", "MemoryError", "no room"),
    ],
)
def test_attach(those: Told, name: str, named: str, reason: str) -> None:
    assert_refused(those, "case_refused_at_attach", "part in the training", named, reason, name)
    for found in results(those, 3, "case_refused_at_attach"):
        assert found["plain"] and found["after"] == ""


@pytest.mark.parametrize(
    ("name", "differs"),
    [
        ("other microbatch", "the micro-batches"),
        ("start", "the step that batches begin at"),
        ("plan", "the plan of the batches"),
        ("key", "the batches' key"),
        ("users", "the micro-batches"),
    ],
)
def test_batches_that_differ(those: Told, name: str, differs: str) -> None:
    for found in results(those, 3, "case_refused_batches"):
        assert f"the ranks don't agree on {differs}" in found[name]
        assert found["after"] == ""


def test_batches_that_one_rank_cannot_begin(those: Told) -> None:
    assert_refused(those, "case_refused_batches", "batches", "ValueError", "microbatch=0 must be >= 1", "microbatch")


def test_states(those: Told) -> None:
    assert_refused(those, "case_refused_states", "the state", "BudgetExceeded", "counts 9 steps", "edited")
    for found in results(those, 3, "case_refused_states"):
        assert "the ranks don't agree on the state" in found["fewer"]
        assert (found["steps"], found["right"], found["loaded"]) == (0, "", 2)


def test_ranks_with_parts_of_a_model(those: Told) -> None:
    for found in results(those, 3, "case_stages"):
        assert found.startswith("UnsupportedOperation: the ranks hold other parameters than each other, as stages of a pipeline do")


def test_ranks_at_different_places(those: Told) -> None:
    for found in results(those, 3, "case_out_of_step"):
        assert found.startswith("PrivacyViolation: the ranks are at different places of the program")


def test_the_ranks_are_in_step_after_it(those: Told) -> None:
    assert results(those, 3, "case_goes_on") == [{"groupclip": 6, "user": 0}] * 3
