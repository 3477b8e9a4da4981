import json

import pytest

from groupclip.errors import BudgetExceeded, PrivacyViolation
from groupclip.privacy.ledger import Ledger
from groupclip.privacy.mechanism import Mechanism

PLAN = Mechanism(dataset_size=1_000, expected_batch_size=50, steps=3, noise_multiplier=1.0)


def ledger_with(*sampling: str) -> Ledger:
    ledger = Ledger(PLAN)
    for sampler in sampling:
        ledger.record(sampler)
    return ledger


def test_counts_what_the_mechanism_charges():
    ledger = Ledger(PLAN)
    assert (ledger.steps, ledger.sampling, ledger.epsilon(delta=1e-5)) == (0, "none", 0.0)
    for step in (1, 2, 3):
        ledger.record("groupclip")
        assert ledger.steps == step
        assert ledger.epsilon(delta=1e-5) == PLAN.epsilon(delta=1e-5, steps=step)
    assert ledger.spent(delta=1e-5) == PLAN.spent(delta=1e-5)


@pytest.mark.parametrize(
    ("steps", "whose"),
    [((), "none"), (("groupclip",), "groupclip"), (("user", "user"), "user"), (("groupclip", "user"), "mixed")],
)
def test_whose_sampling_it_was(steps, whose):
    ledger = ledger_with(*steps)
    assert ledger.sampling == whose
    assert ledger.steps_by_sampler == {"groupclip": steps.count("groupclip"), "user": steps.count("user")}


def test_looking_at_a_state_changes_nothing():
    ledger, further = Ledger(PLAN), ledger_with("groupclip", "user")
    ledger.check_state(further.state_dict())
    assert ledger.steps == 0
    ledger.load_state_dict(further.state_dict())
    assert ledger.steps_by_sampler == {"groupclip": 1, "user": 1}


def test_steps_past_the_plan_are_refused_before_and_after():
    ledger = ledger_with("groupclip", "groupclip")
    ledger.check()
    ledger.record("user")
    for act in (ledger.check, ledger.record):
        with pytest.raises(
            BudgetExceeded, match=r"all 3 planned steps are released: .* plan more steps in a new Mechanism"
        ):
            act()
    assert ledger.steps == 3


def test_unknown_sampler():
    ledger = Ledger(PLAN)
    with pytest.raises(ValueError, match=r"sampling='poisson' must be one of groupclip, user"):
        ledger.record("poisson")
    assert ledger.steps == 0


def test_the_plan_of_a_ledger_is_read_only():
    with pytest.raises(AttributeError):
        Ledger(PLAN).mechanism = Mechanism(dataset_size=1_000, expected_batch_size=1, steps=3, noise_multiplier=9.0)


def test_a_resumed_ledger_goes_on():
    saved = json.loads(json.dumps(ledger_with("groupclip", "user").state_dict()))
    resumed = Ledger(PLAN)
    resumed.load_state_dict(saved)
    assert resumed.state_dict() == saved
    resumed.record("groupclip")
    assert resumed.epsilon(delta=1e-5, sampling_vouched_by_user=True) == PLAN.epsilon(delta=1e-5)
    with pytest.raises(PrivacyViolation, match=r"1 of 3 steps .*sampling_vouched_by_user=True"):
        resumed.epsilon(delta=1e-5)
    with pytest.raises(BudgetExceeded):
        resumed.check()


@pytest.mark.parametrize(
    ("field", "value"),
    [("dataset_size", 2_000), ("expected_batch_size", 40), ("steps", 4), ("noise_multiplier", 2.0)],
)
def test_an_edited_plan_is_detected(field, value):
    """Editing the facts, the hash, or both can't make a checkpoint pass for another plan's."""
    other = Mechanism(**{**PLAN.to_dict(), field: value})
    honest = ledger_with("groupclip").state_dict()
    for edit in (
        {"mechanism": other.to_dict()},
        {"plan_hash": other.plan_hash},
        {"mechanism": other.to_dict(), "plan_hash": other.plan_hash},
    ):
        ledger = Ledger(PLAN)
        with pytest.raises(PrivacyViolation, match="the saved ledger is of another plan") as caught:
            ledger.load_state_dict({**honest, **edit})
        assert ledger.steps == 0
        if "mechanism" in edit:
            assert f"{field} {value!r} (here {PLAN.to_dict()[field]!r})" in str(caught.value)


def test_never_goes_backwards():
    ledger = ledger_with("groupclip", "user")
    earlier = ledger_with("groupclip").state_dict()
    with pytest.raises(PrivacyViolation, match=r"already counts 2 released steps and the saved one 1: .* would forget"):
        ledger.load_state_dict(earlier)
    # as many steps, but the user's own turned into groupclip's
    with pytest.raises(PrivacyViolation):
        ledger.load_state_dict(ledger_with("groupclip", "groupclip").state_dict())
    assert ledger.steps_by_sampler == {"groupclip": 1, "user": 1}


@pytest.mark.parametrize(
    ("edit", "error", "message"),
    [
        ({"steps": {"groupclip": 4, "user": 0}}, BudgetExceeded, "counts 4 steps, the plan has 3"),
        ({"steps": {"groupclip": -1, "user": 0}}, ValueError, "counts -1 groupclip steps; not a whole number >= 0"),
        ({"steps": {"groupclip": True, "user": 0}}, ValueError, "counts True groupclip steps"),
        ({"steps": {"groupclip": 1.0, "user": 0}}, ValueError, r"counts 1\.0 groupclip steps"),
        ({"steps": {"groupclip": 1}}, ValueError, r"steps=\{'groupclip': 1\} must count groupclip and user"),
        ({"steps": 2}, ValueError, "steps=2 must count groupclip and user"),
        ({"version": 2}, ValueError, r"not the state of a ledger \(version 1\)"),
        ({"extra": 0}, ValueError, "not the state of a ledger"),
        ({"mechanism": None}, PrivacyViolation, "another plan"),
    ],
)
def test_a_state_that_is_none_is_refused(edit, error, message):
    ledger = Ledger(PLAN)
    with pytest.raises(error, match=message):
        ledger.load_state_dict({**ledger_with("groupclip").state_dict(), **edit})
    assert ledger.steps == 0


def test_what_is_handed_out_is_a_copy():
    ledger = ledger_with("groupclip")
    ledger.steps_by_sampler["groupclip"] = 0
    state = ledger.state_dict()
    state["steps"]["groupclip"] = 0  # pyright: ignore
    assert ledger.steps == 1
