import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from groupclip.errors import PrivacyViolation
from groupclip.partition.choose import partition
from groupclip.privacy.figures import figure
from groupclip.privacy.ledger import Ledger
from groupclip.privacy.mechanism import Mechanism
from groupclip.statement.record import PrivacyRecord, model_card

PLAN = Mechanism(dataset_size=50_000, expected_batch_size=1_000, steps=250, noise_multiplier=1.01)


def record(**changed) -> PrivacyRecord:
    facts = {
        "mechanism": PLAN,
        "delta": 1e-5,
        "steps_by_sampler": {"groupclip": 250, "user": 0},
        "thresholds": {"first": 0.6, "second": 0.8},
        "noise_std": {"first": 1.01, "second": 1.01},
        "clip": "automatic",
        "partition_style": "uniform:2",
        "secure_noise": True,
    }
    return PrivacyRecord(**{**facts, **changed})


NOT_PRIVATE = {
    "no noise": {
        "mechanism": dataclasses.replace(PLAN, noise_multiplier=0),
        "noise_std": {"first": 0.0, "second": 0.0},
    },
    "a seed": {"secure_noise": False},
}


def test_every_fact_is_told():
    """The fields that a published privacy statement needs."""
    text, facts = record().text(), record().to_dict()
    epsilon = PLAN.epsilon(delta=1e-5)
    for words in (
        f"epsilon = {figure(epsilon)} at delta = 1e-05. ",
        "The unit of privacy is one sample: one row of the training data",
        "adding or removing that one sample changes the probability of anything",
        f"a factor of at most {figure(math.exp(epsilon))} (e to the power epsilon)",
        "clipped (automatic) in 2 groups of parameters (uniform:2)",
        "one sample adds at most 1 in all to the sum",
        "noise multiplier 1.01",
        "divided by the expected batch size, 1,000",
        "250 of 250 planned steps were taken",
        "independently with probability q = 0.02. groupclip drew every batch in that way.",
        "AES-256 in counter mode",
        "The PLD accountant of dp-accounting 0.6",
        "the smaller is stated",
        "The figure covers the final weights, the weights after every step, and every noisy gradient",
        "Tuning is not accounted",
        "Figures that were measured on the training data, such as loss or accuracy, are not covered.",
        "isn't hardened against attacks on its rounding",
    ):
        assert words in text
    assert facts["epsilon"] == epsilon == facts["epsilon_pld"] < facts["epsilon_rdp"]
    assert facts["groups"][1] == {"name": "second", "threshold": 0.8, "noise_std": 1.01}
    assert (facts["private"], facts["steps_taken"], facts["steps_planned"]) == (True, 250, 250)
    assert facts["plan_hash"] == PLAN.plan_hash
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts


@pytest.mark.parametrize("changed", NOT_PRIVATE.values(), ids=NOT_PRIVATE)
def test_without_protection_no_epsilon_is_claimed(changed):
    unprotected = record(**changed)
    text, facts, card = unprotected.text(), unprotected.to_dict(), model_card(unprotected)
    assert text.startswith("Result. NOT PRIVATE. No epsilon is claimed for this run, because ")
    assert unprotected.spent is None
    assert (facts["private"], facts["epsilon"], facts["epsilon_rdp"], facts["epsilon_pld"]) == (False, *[None] * 3)
    for told in (text, card):
        assert "epsilon =" not in told and "What it means" not in told and "What is covered" not in told
    assert "differential-privacy" not in card and "| epsilon | none claimed: NOT PRIVATE |" in card


def test_why_it_is_not_private():
    assert "the noise was made from a seed" in record(secure_noise=False).text()
    assert "INSECURE. The noise comes from a seed" in record(secure_noise=False).text()
    assert "no noise was added" in record(**NOT_PRIVATE["no noise"]).text()
    assert "No noise was added to the sum" in record(**NOT_PRIVATE["no noise"]).text()
    both = record(**NOT_PRIVATE["no noise"], secure_noise=False)
    assert len(both.obstacles) == 2


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ({"groupclip": 0, "user": 250}, "The sampling was the user's own; the figure holds only if each batch was a Poisson"),
        ({"groupclip": 240, "user": 10}, "In 10 of the 250 steps the sampling was the user's own; the figure holds only if"),
    ],
)
def test_whose_sampling_it_was(steps, words):
    vouched = record(steps_by_sampler=steps, sampling_vouched_by_user=True)
    text = vouched.text()
    assert words in text
    assert "whoever trained the model vouches for it" in text
    assert "groupclip drew every batch" not in text
    assert "at delta = 1e-05, provided that the batches were Poisson samples" in text
    assert vouched.to_dict()["sampling_used"] == steps
    assert vouched.to_dict()["sampling_vouched_by_user"] is True


@pytest.mark.parametrize("own", [0, 240])
def test_sampling_that_nobody_vouches_for_has_no_epsilon(own):
    made = record(steps_by_sampler={"groupclip": own, "user": 250 - own})
    facts, text = made.to_dict(), made.text()
    assert (facts["private"], facts["epsilon"], facts["accountant"]) == (False, None, None)
    assert f"in {250 - own} of 250 steps groupclip didn't draw the batch, or it wasn't taken whole and in turn" in text
    assert "NOT PRIVATE. No epsilon is claimed" in text
    assert "epsilon =" not in text
    assert "differential-privacy" not in model_card(made).split("---")[1]
    # the twin: groupclip's own batches need nobody's word, and take none
    ours = record(sampling_vouched_by_user=True)
    assert ours.spent is not None and ours.to_dict()["sampling_vouched_by_user"] is False


def test_a_run_that_goes_on():
    early, late = record(steps_by_sampler={"groupclip": 10, "user": 0}), record()
    assert "10 of 250 planned steps were taken" in early.text()
    assert 0 < early.spent.epsilon < late.spent.epsilon
    none = record(steps_by_sampler={"groupclip": 0, "user": 0})
    assert "No step was released yet, so epsilon is 0" in none.text()
    assert none.to_dict()["epsilon"] == 0


def test_unsafe_statistics_are_named():
    looked = record(unsafe_statistics=["per-sample gradient norms"])
    assert "UN-NOISED STATISTICS WERE LOOKED AT during training: per-sample gradient norms." in looked.text()
    assert looked.to_dict()["unsafe_statistics"] == ["per-sample gradient norms"]
    assert "UN-NOISED" not in record().text()


@pytest.mark.parametrize(
    ("sigma", "reading"),
    [(2.0, "this is strong."), (0.7, "and not strong."), (0.4, "this is weak"), (0.2, "no meaningful guarantee")],
)
def test_the_reading_of_the_figure(sigma, reading):
    said = record(
        mechanism=dataclasses.replace(PLAN, noise_multiplier=sigma), noise_std={"first": sigma, "second": sigma}
    )
    result = said.text().split("\n\n")[0]
    assert reading in result


def test_a_delta_that_means_nothing_is_said_to():
    assert "MORE than one in the number of samples (50,000)" in record(delta=1e-4).text()
    assert "MORE than" not in record().text()
    for just in (1 / 50_000, 2e-5):
        assert "as much as one in the number of samples (50,000)" in record(delta=just).text()
        assert "less than one in" not in record(delta=just).text()
    assert "less than one in the number of samples" in record(delta=1.99e-5).text()


@pytest.mark.parametrize("factor", [0.999, 0.5])
@pytest.mark.parametrize("group", ["first", "second"])
def test_too_little_noise_in_one_group_is_refused(factor, group):
    noise = {"first": 1.01, "second": 1.01}
    noise[group] *= factor
    with pytest.raises(PrivacyViolation, match=r"noise_multiplier=.*, the plan says 1\.01: .* claim too much"):
        record(noise_std=noise)


def test_a_group_without_noise_is_refused():
    with pytest.raises(PrivacyViolation, match="amounts to noise_multiplier=0"):
        record(noise_std={"first": 1.01, "second": 0.0})
    with pytest.raises(PrivacyViolation, match="amounts to noise_multiplier=nan"):
        record(noise_std={"first": 1.01, "second": math.nan})


@given(
    thresholds=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=40),
    sigma=st.floats(0.3, 30),
    shares=st.data(),
)
@settings(max_examples=50, deadline=None)
def test_any_allocation_of_the_planned_noise_is_accepted(thresholds, sigma, shares):
    """s_m = sigma R_m / sqrt(share_m) with shares that add up to 1: sum (R_m / s_m)^2 = 1 / sigma^2."""
    weights = [shares.draw(st.floats(0.01, 1)) for _ in thresholds]
    bounds = {str(m): bound for m, bound in enumerate(thresholds)}
    noise = {
        str(m): sigma * bound / math.sqrt(weight / sum(weights))
        for m, (bound, weight) in enumerate(zip(thresholds, weights, strict=True))
    }
    plan = dataclasses.replace(PLAN, noise_multiplier=sigma)
    accepted = record(mechanism=plan, thresholds=bounds, noise_std=noise)
    assert accepted.realised_noise_multiplier == pytest.approx(sigma, rel=1e-12)
    with pytest.raises(PrivacyViolation):
        record(mechanism=plan, thresholds=bounds, noise_std={name: std * (1 - 1e-6) for name, std in noise.items()})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"noise_std": {"first": 1.01}}, r"noise_std for \['first'\]; both need every group"),
        ({"thresholds": {}, "noise_std": {}}, "both need every group"),
        ({"steps_by_sampler": {"groupclip": 3}}, "must count groupclip and user steps; pass ledger.steps_by_sampler"),
        ({"mechanism": dataclasses.replace(PLAN, noise_multiplier=None)}, "no noise_multiplier yet: calibrate it"),
    ],
)
def test_incomplete_records_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        record(**changed)


def test_from_a_ledger_and_a_partition():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    groups = partition(model, "layer-wise")
    ledger = Ledger(PLAN)
    ledger.record("groupclip")
    ledger.record("user")
    made = PrivacyRecord.of(
        ledger,
        delta=1e-5,
        partition=groups,
        thresholds=dict.fromkeys(groups.names, math.sqrt(0.5)),
        noise_std=1.01,
        clip="abadi",
        secure_noise=True,
        unsafe=["losses"],
    )
    assert made.spent is None  # a step of the user's own, which nobody vouches for
    vouched = dataclasses.replace(made, sampling_vouched_by_user=True)
    assert vouched.spent == ledger.spent(delta=1e-5, sampling_vouched_by_user=True)
    assert made.noise_std == dict.fromkeys(groups.names, 1.01)
    assert (made.steps_by_sampler, made.partition_style) == ({"groupclip": 1, "user": 1}, "layer-wise")
    assert made.unsafe_statistics == ("losses",)


@given(st.floats(1e-12, 1e9))
def test_printed_figures_are_rounded_up(epsilon):
    printed = float(figure(epsilon).replace(",", ""))
    assert epsilon * (1 - 1e-8) <= printed <= epsilon * 1.0101


@pytest.mark.parametrize(
    ("epsilon", "printed"),
    [(0.0, "0"), (2.0, "2.00"), (1.9901, "2.00"), (0.1234, "0.124"), (12.31, "12.4"), (1234.0, "1,240"), (1e-5, "1e-05")],
)
def test_three_digits(epsilon, printed):
    assert figure(epsilon) == printed
