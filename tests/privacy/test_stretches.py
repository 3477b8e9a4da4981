"""Stretches of steps with noise of their own, and their rounds: in the ledger and in a budget."""

import json

import pytest

import groupclip as gc
from groupclip.errors import BudgetExceeded
from groupclip.privacy.composition import composed_epsilon
from groupclip.privacy.ledger import Ledger, charged_in
from groupclip.privacy.mechanism import Mechanism
from groupclip.privacy.stretches import begun_at, checked_begun, last_step, rounds_in

PLAN = Mechanism(dataset_size=1_000, expected_batch_size=50, steps=20, noise_multiplier=2.0, adjacency="zero-out", bands=4)


@pytest.mark.parametrize(
    ("begun", "steps", "rounds"),
    [((), 0, 0), ((), 9, 3), ((0,), 9, 3), ((0, 4), 9, 3), ((0, 5), 9, 3), ((0, 5), 10, 4), ((0, 1, 2), 3, 3), ((0, 9), 9, 3)],
)
def test_rounds_of_stretches(begun, steps, rounds):
    assert rounds_in(begun, steps, 4) == rounds
    assert rounds_in(begun, steps, 1) == steps


def test_a_stretch_begins_once():
    assert begun_at((), 0, 4, anew=False) == (0,) and begun_at((0,), 0, 4, anew=True) == (0,)
    assert begun_at((0,), 3, 4, anew=False) == (0,) and begun_at((0,), 3, 4, anew=True) == (0, 3)
    assert begun_at((), 3, 1, anew=True) == ()


@pytest.mark.parametrize(
    ("begun", "steps", "bands", "last"),
    [((), 0, 4, 12), ((0,), 4, 4, 12), ((0,), 5, 4, 9), ((0, 5), 7, 4, 7), ((0, 1, 2, 3), 4, 4, 4), ((), 5, 1, 12)],
)
def test_the_last_step_within_the_plans_rounds(begun, steps, bands, last):
    assert last_step(begun, steps, 12, bands) == last
    assert rounds_in((*begun, steps), last, bands) <= max(rounds_in(begun, steps, bands), rounds_in((), 12, bands))


@pytest.mark.parametrize("found", [[0, 0], [3, 1], [-1], [5], ["0"], [True], (0,), None, [0.0]])
def test_what_was_edited_is_refused(found):
    with pytest.raises(ValueError, match="begun="):
        checked_begun(found, 5, 4)


def ledger_with(*anew: bool) -> Ledger:
    ledger = Ledger(PLAN)
    for begins in anew:
        ledger.record("groupclip", anew=begins)
    return ledger


def test_the_ledger_composes_two_factorised_runs():
    ledger = ledger_with(True, *[False] * 4, True, *[False] * 4)  # 5 and 5 steps: 2 and 2 rounds, where 10 in one go are 3
    assert (ledger.steps, ledger.rounds, PLAN.rounds(10)) == (10, 4, 3)
    both = composed_epsilon([(PLAN.step, 2), (PLAN.step, 2)], [], [], 1e-5)[0]
    assert ledger.epsilon(delta=1e-5) == pytest.approx(both, rel=1e-3)
    assert ledger.epsilon(delta=1e-5) > 1.05 * PLAN.epsilon(delta=1e-5, steps=10)
    assert "steps in one go: 1" in ledger.spent(delta=1e-5).note


def test_a_beginning_is_told_before_its_step_is_counted():
    heard = []
    ledger = Ledger(PLAN)
    ledger.tell_beginnings(lambda begun: heard.append((ledger.steps, begun)))
    for anew in (True, False, True):
        ledger.record("groupclip", anew=anew)
    assert heard == [(0, (0,)), (2, (0, 2))]

    def full(begun):
        raise OSError("no space left")

    ledger.tell_beginnings(full)
    with pytest.raises(OSError, match="no space left"):
        ledger.record("groupclip", anew=True)
    assert (ledger.steps, ledger.rounds) == (3, 2)
    ledger.record("groupclip", anew=False)
    assert (ledger.steps, ledger.rounds) == (4, 2)


def test_a_saved_ledger_keeps_its_stretches():
    saved = json.loads(json.dumps(ledger_with(True, False, True).state_dict()))
    again = Ledger(PLAN)
    again.load_state_dict(saved)
    again.record("groupclip", anew=True)
    assert again.rounds == 3 and again.state_dict()["begun"] == [0, 2, 3]
    with pytest.raises(ValueError, match="begun="):
        Ledger(PLAN).load_state_dict({**saved, "begun": [0, 7]})
    knows = ledger_with(True, True)  # of a beginning that the saved one doesn't tell
    knows.load_state_dict(saved)
    assert knows.rounds == 3 and knows.state_dict()["begun"] == [0, 1, 2]
    assert "begun" not in Ledger(Mechanism(dataset_size=10, expected_batch_size=1, steps=2)).state_dict()


def test_steps_lost_in_a_crash_count_as_rounds_of_their_own():
    saved = ledger_with(True, False).state_dict()
    again = Ledger(PLAN)
    again.load_state_dict(charged_in(saved, 3))
    assert (again.steps, again.rounds) == (5, 4)
    assert charged_in(saved, 0) == saved
    known = charged_in(saved, 5, begun=(0, 3), told=5)  # steps 5 and 6 were told by nobody
    assert known["begun"] == [0, 3, 5, 6] and known["steps"] == {"groupclip": 7, "user": 0}
    assert charged_in(saved, 5, begun=(0, 3), told=9)["begun"] == [0, 3]


def test_a_budget_counts_stretches(tmp_path):
    budget = gc.Budget(tmp_path / "budget.jsonl", epsilon=20.0, delta=1e-5, adjacency="zero-out")
    reservation = budget.reserve(PLAN)
    assert budget.committed().epsilon == pytest.approx(PLAN.epsilon(delta=1e-5), rel=1e-6)
    for step in range(10):
        reservation.charge("groupclip", anew=step in (0, 5))
    ledger = ledger_with(True, *[False] * 4, True, *[False] * 4)
    assert budget.spent().epsilon == pytest.approx(ledger.epsilon(delta=1e-5), rel=1e-6)
    again = gc.Budget(tmp_path / "budget.jsonl")
    assert again.entries[0].begun == (0, 5) and again.spent() == budget.spent()
    assert again.committed().epsilon == pytest.approx(PLAN.spent(delta=1e-5, rounds=6).epsilon, rel=1e-3)


def test_a_new_stretch_cannot_overdraw_a_budget(tmp_path):
    budget = gc.Budget(tmp_path / "budget.jsonl", epsilon=1.001 * PLAN.epsilon(delta=1e-5), delta=1e-5, adjacency="zero-out")
    reservation = budget.reserve(PLAN)
    for step in range(3):
        reservation.charge("groupclip", anew=step == 0)
    with pytest.raises(BudgetExceeded):
        reservation.charge("groupclip", anew=True)
    assert budget.taken(reservation.name) == 3
    reservation.charge("groupclip", anew=False)  # the stretch itself may go on


def test_a_training_in_rounds_begins_a_stretch_in_each(tmp_path):
    budget = gc.Budget(tmp_path / "budget.jsonl", epsilon=20.0, delta=1e-5, adjacency="zero-out")
    for first in (0, 5):
        ledger = Ledger(PLAN)
        ledger.draw_on(budget.go_on(PLAN, label="client 7"))
        assert ledger.steps == first
        for step in range(5):
            ledger.record("groupclip", anew=step == 0)
    assert (ledger.steps, ledger.rounds) == (10, 4) and budget.entries[0].begun == (0, 5)
    assert budget.spent().epsilon == pytest.approx(ledger.epsilon(delta=1e-5), rel=1e-6)
