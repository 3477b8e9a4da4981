"""A run on a budget says what the budget held, and where that contradicts what was told of a search."""

from __future__ import annotations

import dataclasses
import json
from datetime import date
from typing import Any

import pytest

import groupclip as gc
from groupclip.statement import PrivacyRecord, Told, questions
from groupclip.statement.asked import UNKNOWN
from groupclip.statement.drawn import DrawnBudget
from groupclip.statement.registry import registry_entry

PLAN = gc.Mechanism(dataset_size=1_000, expected_batch_size=50, steps=4, noise_multiplier=1.5)


def record(entries: int | None, **told: Any) -> PrivacyRecord:
    return PrivacyRecord(
        mechanism=PLAN, delta=1e-5, steps_by_sampler={"groupclip": 4, "user": 0}, thresholds={"all": 1.0}, noise_std={"all": 1.5},
        clip="automatic", partition_style="all-layer", secure_noise=True, told=Told(**told),
        budget=None if entries is None else DrawnBudget(epsilon=2.5, delta=1e-6, entries=entries),
    )  # fmt: skip


def answers(of: PrivacyRecord) -> dict[str, str]:
    return {each.topic: each.answer for each in questions(json.loads(json.dumps(of.to_dict())))}


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (1, "It draws on a budget in which nothing else was entered when this was written; the budget had spent epsilon = 2.50"),
        (2, "It draws on a budget with 1 other entry; when this was written, all of them together had spent epsilon = 2.50"),
        (4, "with 3 other entries; when this was written, all of them together had spent epsilon = 2.50 at delta = 1e-06."),
        (None, "The figure is of one training. Not known to groupclip: what else there is."),
    ],
)
def test_the_composition_has_the_budgets_total(entries: int | None, words: str) -> None:
    answer = answers(record(entries))["composition"]
    assert words in answer and UNKNOWN in answer
    assert "A count." in (told := answers(record(entries, others="A count."))["composition"]) and UNKNOWN not in told


def test_a_search_that_is_denied_is_contradicted_by_other_entries() -> None:
    contradicted = record(3, search="none")
    but = "But the budget of this run has 2 other entries: if a setting was chosen by a training among them, there was a search"
    assert f"Whoever trained says that there was none. {but}" in answers(contradicted)["search"]
    assert f"comparing runs on these data. {but}" in contradicted.text()
    facts = json.loads(json.dumps(contradicted.to_dict()))
    entry = registry_entry(facts, slug="a", published=date(2026, 1, 1))["deployment"]["implementation"]
    assert f"no settings were searched for on these data. {but}" in entry["preprocessing_and_hyperparameter_tuning"]
    for entries, search in ((None, "none"), (1, "none"), (3, ""), (3, "not counted")):
        of = record(entries, search=search)
        assert "But the budget" not in answers(of)["search"] and "But the budget" not in of.text()


def test_a_record_of_before_has_no_budget() -> None:
    facts = record(None).to_dict()
    assert facts.pop("budget") is None
    assert [each.answer for each in questions(facts)] == list(answers(record(None)).values())


@pytest.mark.parametrize("wrong", [{"epsilon": -1.0}, {"epsilon": float("inf")}, {"delta": 0.0}, {"delta": 1.0}, {"entries": 0}])
def test_what_no_budget_holds_is_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=f"budget.{name}"):
        dataclasses.replace(DrawnBudget(epsilon=1.0, delta=1e-5, entries=2), **wrong)
