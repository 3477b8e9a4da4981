"""The statement of every kind of plan says what that plan assumed."""

import dataclasses
import json
import math
import re

import pytest

from groupclip.cli.app import run
from groupclip.errors import PrivacyViolation
from groupclip.noise.grid import planned_for, rounding
from groupclip.privacy.figures import figure
from groupclip.privacy.mechanism import Mechanism
from groupclip.statement.record import PrivacyRecord, model_card

PLAN = Mechanism(dataset_size=1_000, expected_batch_size=100, steps=20, noise_multiplier=2.0)


def record(mechanism: Mechanism, **changed) -> PrivacyRecord:
    sigma = mechanism.noise_multiplier
    facts = {
        "mechanism": mechanism,
        "delta": 1e-5,
        "steps_by_sampler": {"groupclip": 20, "user": 0},
        "thresholds": {"first": 0.6, "second": 0.8},
        "noise_std": {"first": sigma, "second": sigma},
        "clip": "automatic",
        "partition_style": "uniform:2",
        "secure_noise": True,
    }
    return PrivacyRecord(**{**facts, **changed})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ["adding or removing that one sample changes", "Poisson samples: each of the 1,000 samples enters"]),
        ({"adjacency": "zero-out"}, ["replacing that one sample by one that adds nothing changes"]),
        ({"adjacency": "replace-one"}, ["replacing that one sample by any other changes", "The PLD accountant"]),
        (
            {"adjacency": "zero-out", "sampling": "truncated-poisson"},
            ["truncated Poisson samples: each of the 1,000 samples is drawn", "at most 165 of those drawn"],
        ),
        (
            {"adjacency": "replace-one", "sampling": "without-replacement"},
            ["assumes that each batch is a random choice of exactly 100 of the 1,000 samples", "The RDP accountant"],
        ),
        (
            {"sampling": "full-batch", "expected_batch_size": 1_000},
            ["each batch holds all 1,000 samples", "Its epsilon is known exactly", "exact "],
        ),
        (
            {"unit": "user"},
            [
                "The unit of privacy is one user: all of that user's samples",
                "The gradient of a user's mean loss was clipped as one",
                "learns almost the same about any one user",
                "so that one user adds at most 1",
                "each of the 1,000 users enters",
            ],
        ),
    ],
)
def test_what_was_assumed_is_told(changed, words, capsys):
    mechanism = dataclasses.replace(PLAN, **changed)
    made = record(mechanism)
    for said in words:
        assert said in made.text()
    facts = made.to_dict()
    assert facts["epsilon"] == mechanism.epsilon(delta=1e-5) and facts["adjacency"] == mechanism.adjacency
    assert (facts["epsilon_exact"] is not None) == (mechanism.sampling == "full-batch")
    assert mechanism.adjacency in model_card(made)
    assert f"One {mechanism.unit} adds at most" in model_card(made) and "| software | groupclip " in model_card(made)
    command = re.search("computes it again: groupclip (epsilon .*)", made.text())
    assert command is not None
    assert run([*command.group(1).split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == facts["epsilon"]


def test_batches_of_the_users_own():
    own = {"steps_by_sampler": {"groupclip": 0, "user": 20}, "sampling_vouched_by_user": True}
    assert "only if each batch was a Poisson sample at rate q" in record(PLAN, **own).text()
    fixed = dataclasses.replace(PLAN, sampling="without-replacement", adjacency="replace-one")
    assert "only if each batch was drawn in that way" in record(fixed, **own).text()
    assert "provided that the batches were drawn without replacement" in record(fixed, **own).text()
    users = dataclasses.replace(PLAN, unit="user")
    assert "and each loss that was clipped was that of one user" in record(users, **own).text()


def test_what_else_was_released_counts():
    """Counts with a tenth of the budget need 5 % more noise on the gradients; without it the record is refused."""
    counts = {"other_releases": {"counts": 2.0 / math.sqrt(0.1)}}
    enough = {group: 2.0 / math.sqrt(0.9) for group in ("first", "second")}
    made = record(PLAN, **counts, noise_std=enough)
    assert made.realised_noise_multiplier == pytest.approx(2.0)
    assert "paid for in the same figure: counts (noise multiplier 6.32456)" in made.text()
    assert made.to_dict()["other_releases"] == [{"name": "counts", "noise_multiplier": 2.0 / math.sqrt(0.1)}]
    with pytest.raises(PrivacyViolation, match=r"amounts to noise_multiplier=1\.90693, the plan says 2"):
        record(PLAN, **counts)
    with pytest.raises(ValueError, match="must be noise multipliers > 0"):
        record(PLAN, other_releases={"counts": 0.0})


def test_rounding_to_a_grid_counts():
    more = planned_for(2.0, 10**6)
    made = record(PLAN, rounding=rounding(10**6), noise_std={"first": more, "second": more})
    assert "The noise is exact, on a grid" in made.text()
    assert ("hardened against floating-point attacks", "the noise is; the sum isn't") in [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in model_card(made).splitlines()
        if "|" in line
    ]
    with pytest.raises(PrivacyViolation, match="the plan says 2"):
        record(PLAN, rounding=rounding(10**6))


def test_a_seed_stamps_every_output():
    made = record(PLAN, secure_noise=False)
    assert made.to_dict()["private"] is False and made.to_dict()["epsilon"] is None
    for output in (made.text(), model_card(made)):
        assert "NOT PRIVATE" in output and "INSECURE" in output and "epsilon = " not in output
    assert "differential-privacy" not in model_card(made)


def test_several_samples_of_a_person_are_told_at_the_same_delta():
    """Not as k times epsilon, which holds at a larger delta."""
    told = record(PLAN).text()
    two = PLAN.spent(delta=1e-5, samples_per_user=2).epsilon
    assert two > 2.05 * PLAN.epsilon(delta=1e-5)
    assert f"at the same delta, epsilon is {figure(two)} for one with 2" in told and "k times as large" not in told
    by_user = record(dataclasses.replace(PLAN, unit="user"))
    assert f"appears as several users is protected less: at the same delta, epsilon is {figure(two)}" in by_user.text()


def test_where_no_figure_is_known_for_several_samples_it_is_said():
    plan = dataclasses.replace(PLAN, sampling="truncated-poisson", adjacency="zero-out")
    assert record(plan).spent_by_several == {} == record(plan).to_dict()["epsilon_by_samples_of_a_person"]
    assert "epsilon is about k times as large or more at this delta, and no sound accountant is known here" in record(plan).text()
    assert record(PLAN, secure_noise=False).spent_by_several == {}


def test_figures_for_more_samples_than_there_are_are_not_told():
    plan = Mechanism(dataset_size=3, expected_batch_size=1, steps=20, noise_multiplier=2.0)
    assert list(record(plan).spent_by_several) == [2]


def test_so_many_samples_that_no_figure_is_finite_are_left_out():
    plan = dataclasses.replace(PLAN, noise_multiplier=0.3, adjacency="replace-one", dataset_size=100_000)
    plan = dataclasses.replace(plan, expected_batch_size=2_000, steps=1_000)
    told = record(plan, steps_by_sampler={"groupclip": 1_000, "user": 0})
    assert told.spent is not None and 8 not in told.spent_by_several
    assert "for one with 8" not in told.text()
