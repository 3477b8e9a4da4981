"""Several processes draw on one budget: rank 0 charges each step once, and all take it, or none does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import budget_cases as cases
import ddp_cases
import groupclip as gc
import ranks
from one_process import results

SIZE = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("budget")


@pytest.fixture(scope="module")
def those(folder: Path) -> dict[int, list[dict[str, Any]]]:
    return {SIZE: ranks.run(SIZE, "budget_cases", folder, patience=40)}


@pytest.mark.parametrize(("case", "name", "steps"), [("first_gives_it", "first", 3), ("all_give_it", "all", 2)])
def test_a_step_of_all_ranks_is_charged_once(those: Any, folder: Path, case: str, name: str, steps: int) -> None:
    first, *others = results(those, SIZE, f"case_{case}")
    (entry,) = gc.Budget(folder / name).entries
    assert (entry.taken, entry.planned, entry.is_open) == (steps, cases.STEPS, False)
    assert first["ledger"]["steps"] == {"groupclip": steps, "user": 0}
    assert all(other == first for other in others)
    assert gc.Budget(folder / name).spent().epsilon == ddp_cases.plan(3.0, cases.STEPS).spent(delta=1e-5, steps=steps).epsilon


def test_one_process_goes_on(those: Any, folder: Path) -> None:
    state = results(those, SIZE, "case_first_gives_it")[0]
    budget = gc.Budget(folder / "first")
    *_, engine, _ = cases.attached(budget.reopen(state["ledger"]["budget"]))
    engine.load_state_dict(state)
    model, optimizer = engine.model, engine.optimizer
    engine.backward(cases.losses(model, cases.data(torch.float64)[:4]))
    optimizer.step()
    assert [entry.taken for entry in budget.entries] == [cases.STEPS]
    engine.detach()


def test_it_is_given_on_rank_0(those: Any) -> None:
    for found in results(those, SIZE, "case_another_gives_it"):
        assert "budget= is given on rank 1 and not on rank 0" in found


def test_a_plan_that_does_not_fit_changes_nothing(those: Any) -> None:
    first, *others = results(those, SIZE, "case_it_does_not_fit")
    assert first["told"].startswith("BudgetExceeded") and first["plain"]
    for other in others:
        assert "rank 0 refused part in the training" in other["told"] and other["plain"]


def test_a_step_that_cannot_be_charged_is_taken_by_nobody(those: Any) -> None:
    for rank, (before, after) in enumerate(results(those, SIZE, "case_it_was_closed")):
        assert before == ("", 1)
        assert after[1] == 1
        assert after[0].startswith("PrivacyViolation: rank 0 refused the step" if rank else "BudgetExceeded")
