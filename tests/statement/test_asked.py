"""Each question of the checklist and of NIST's guidelines is answered from the record, or marked as not known to groupclip."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

import groupclip as gc
from groupclip.cli.app import run
from groupclip.privacy.curve import SHARES, curve_of
from groupclip.privacy.figures import figure
from groupclip.statement import PrivacyRecord, Told, model_card, questions
from groupclip.statement.asked import CHECKLIST, NIST, UNKNOWN
from groupclip.statement.verified import differences

PLAN = gc.Mechanism(dataset_size=1_000, expected_batch_size=50, steps=40, noise_multiplier=1.5)
EVERYTHING = Told(
    trust="The hospital trains on its own machines.", vocabulary="No: words are hashed.", constants="No: fixed beforehand.",
    filtering="Records without consent were left out.", early_stopping="No.", search="counted", search_epsilon=9.0,
    others="A yearly count, epsilon 0.1.", small_groups="Accuracy for people under 20 is 4 points lower.",
    access="Two persons, logged.", commit="0123abc",
)  # fmt: skip
#: What the checklist of Ponomareva et al. 2023, section 5.3, asks for, and where NIST SP 800-226 looks: topic -> of the answer.
CHECKED = {
    "trust setting": "Central: whoever trained saw the data",
    "vocabulary": UNKNOWN,
    "normalisation constants": UNKNOWN,
    "filtering": UNKNOWN,
    "early stopping": UNKNOWN,
    "looks without noise": "Nothing that groupclip was asked for",
    "search": "whether settings were chosen by other runs",
    "what is released": "The noisy gradient of every step",
    "unit of privacy": "One sample: one row",
    "adjacency": "differ by the presence of one sample (add-or-remove-one)",
    "accounting": "dp-accounting",
    "assumptions": "Batches drawn Poisson; groupclip drew 40 of 40",
    "formal statement": "is (epsilon, delta) differentially private",
    "versions and commit": "plan (SHA-256)",
}
LOOKED_AT = {
    "epsilon": "By the usual reading",
    "delta against 1/n^2": "ABOVE 1/n^2, and below 1/n",
    "the whole curve": "The nearest Gaussian curve above has mu",
    "contributions": "for 8 samples",
    "trust model": "Not against whoever trained",
    "bias against small groups": "may be less accurate for small groups",
    "side channels": "isn't hidden",
    "randomness": "cryptographic generator",
    "composition": "The figure is of one training",
    "access and collection": UNKNOWN,
}


def record(**changed: Any) -> PrivacyRecord:
    facts: dict[str, Any] = {
        "mechanism": PLAN, "delta": 1e-5, "steps_by_sampler": {"groupclip": 40, "user": 0}, "thresholds": {"all": 1.0},
        "noise_std": {"all": 1.5}, "clip": "automatic", "partition_style": "all-layer", "secure_noise": True,
    }  # fmt: skip
    return PrivacyRecord(**(facts | changed))


def answers(of: PrivacyRecord) -> dict[str, Any]:
    return {each.topic: each for each in questions(json.loads(json.dumps(of.to_dict())))}


def test_every_question_is_there_and_answered_or_marked() -> None:
    found = answers(record())
    assert {topic for topic, each in found.items() if each.source == CHECKLIST} == set(CHECKED)
    assert {topic for topic, each in found.items() if each.source == NIST} == set(LOOKED_AT)
    for topic, words in (CHECKED | LOOKED_AT).items():
        assert words in found[topic].answer, topic
        assert found[topic].question.endswith("?") and found[topic].answer.endswith((".", "nothing"))
    unknown = {topic for topic, each in found.items() if not each.known}
    assert unknown == {
        "trust setting", "vocabulary", "normalisation constants", "filtering", "early stopping", "search", "versions and commit",
        "bias against small groups", "composition", "access and collection",
    }  # fmt: skip


def test_what_is_told_leaves_nothing_unknown_and_is_in_the_answers() -> None:
    found = answers(record(told=EVERYTHING))
    assert all(each.known for each in found.values())
    told = " ".join(each.answer for each in found.values())
    for name, words in EVERYTHING.to_dict().items():
        assert name in ("search", "search_epsilon") or str(words).rstrip(".") in told, name
    assert "the whole search spends epsilon = 9.00 at delta = 1e-05" in found["search"].answer
    covered = {topic for topic, each in found.items() if "The figure doesn't cover that." in each.answer}
    assert covered == {"filtering"}  # of the others it was told that nothing was read


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (Told(search="none"), "There was none"),
        (Told(search="not counted"), "the true epsilon is larger"),
        (Told(search="counted", search_epsilon=7.5), "the whole search spends epsilon = 7.50"),
        (Told(), UNKNOWN),
    ],
)
def test_the_search_is_none_counted_not_counted_or_unknown(told: Told, words: str) -> None:
    found = record(told=told)
    assert words in answers(found)["search"].answer
    assert found.to_dict()["tuning_accounted"] == (told.search in ("none", "counted"))
    statement = found.text()
    assert ("Tuning is not accounted" in statement) == (told.search in ("", "not counted"))
    assert ("epsilon = 7.50" in statement) == (told.search == "counted")
    assert differences(found.to_dict()) == []


def test_a_search_below_its_own_run_is_found_out() -> None:
    found = differences(record(told=Told(search="counted", search_epsilon=0.1)).to_dict())
    assert len(found) == 1 and found[0].startswith("told: a search that holds this run spends")


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"search": "some"}, ValueError, "search='some' is unknown"),
        ({"search": "counted"}, ValueError, "a search that is counted has an epsilon"),
        ({"search": "none", "search_epsilon": 1.0}, ValueError, "and no other has"),
        ({"search": "counted", "search_epsilon": -1.0}, ValueError, "search_epsilon"),
        ({"trust": None}, TypeError, "trust=None must be text"),
    ],
)
def test_what_cannot_be_told_is_refused(wrong: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Told(**wrong)
    with pytest.raises(ValueError, match="nothing of that name can be told"):
        Told.from_dict({"colour": "red"})


@pytest.mark.parametrize(("delta", "judged"), [(1e-7, "at most 1/n^2"), (1e-5, "ABOVE 1/n^2"), (1e-2, "NOT below 1/n")])
def test_delta_is_judged_against_the_number_of_people(delta: float, judged: str) -> None:
    found = record(delta=delta)
    assert judged in answers(found)["delta against 1/n^2"].answer
    assert ("NIST advises a delta of at most 1/n^2" in found.text()) == (judged == "ABOVE 1/n^2")


def test_a_run_without_a_guarantee_claims_nothing_anywhere() -> None:
    found = record(secure_noise=False)
    told = answers(found)
    assert told["formal statement"].answer.startswith("None: no epsilon is claimed")
    assert told["the whole curve"].answer == "Nothing is claimed." and "subtracted" in told["randomness"].answer
    assert "At other epsilons" not in found.text()
    assert found.to_dict()["delta_curve"] == [] and found.to_dict()["gdp_mu_estimate"] is None
    assert differences(found.to_dict()) == []


@pytest.mark.parametrize("plan", [
    PLAN,
    dataclasses.replace(PLAN, adjacency="replace-one"),
    dataclasses.replace(PLAN, expected_batch_size=1_000, sampling="full-batch", noise_multiplier=8.0),
    dataclasses.replace(PLAN, sampling="truncated-poisson", adjacency="zero-out"),
    dataclasses.replace(PLAN, sampling="without-replacement", adjacency="replace-one", noise_multiplier=4.0),
])  # fmt: skip
def test_the_curve_is_an_upper_bound_that_is_tight(plan: gc.Mechanism) -> None:
    """Against the plan's own deltas, which refine their grid. A curve of other noise isn't one."""
    epsilon = plan.epsilon(delta=1e-5, steps=30)
    curve = curve_of(plan, steps=30, epsilon=epsilon)
    assert [at / epsilon for at, _ in curve.points] == pytest.approx(SHARES)
    for at, delta in curve.points:
        own = plan.delta(epsilon=at, steps=30)
        assert own * (1 - 1e-6) <= delta and (delta <= 1.1 * own or delta < 1e-9)
    assert dict(curve.points)[epsilon] == pytest.approx(1e-5, rel=1e-3)
    other = curve_of(dataclasses.replace(plan, noise_multiplier=1.2 * (plan.noise_multiplier or 0.0)), steps=30, epsilon=epsilon)
    assert other.points[3][1] < plan.delta(epsilon=epsilon, steps=30)
    assert curve.mu is not None and other.mu is not None and other.mu < curve.mu


def test_mu_is_that_of_a_gaussian_and_covers_a_sampled_curve() -> None:
    gaussian = dataclasses.replace(PLAN, expected_batch_size=1_000, sampling="full-batch", noise_multiplier=8.0)
    curve = curve_of(gaussian, steps=16, epsilon=gaussian.epsilon(delta=1e-5, steps=16))
    assert curve.mu == pytest.approx(math.sqrt(16) / 8, rel=1e-6)
    sampled = curve_of(PLAN, steps=40, epsilon=PLAN.epsilon(delta=1e-5))
    assert sampled.mu == pytest.approx(PLAN.gdp_mu(), rel=0.05)
    assert curve_of(PLAN, steps=0, epsilon=0.0).points == ()


@pytest.mark.parametrize("change", ["delta", "mu", "cut"])
def test_an_edited_curve_is_found_out(change: str) -> None:
    facts = json.loads(json.dumps(record().to_dict()))
    if change == "delta":
        facts["delta_curve"][2]["delta"] /= 2
    elif change == "mu":
        facts["gdp_mu_estimate"] *= 0.9
    else:
        facts["delta_curve"].pop()
    (found,) = differences(facts)
    assert found.startswith("gdp_mu_estimate" if change == "mu" else "delta_curve")


@pytest.mark.parametrize(("key", "value"), [("told", None), ("weights", None), ("software", "none"), ("told", {"search": 5})])
def test_a_record_that_was_cut_or_edited_is_no_record(key: str, value: Any) -> None:
    facts = record().to_dict()
    facts = {**facts, key: value} if value is not None else {name: each for name, each in facts.items() if name != key}
    with pytest.raises(ValueError, match="the record can't be read"):
        questions(facts)


def test_the_card_has_the_questions_the_curve_and_mu() -> None:
    found = record(told=EVERYTHING)
    card = model_card(found)
    for each in questions(found.to_dict()):
        assert f"| {each.topic.split('^')[0]}" in card and f"| {each.source} |" in card
    (at, delta) = found.curve.points[0]
    assert f"| delta at epsilon {figure(at)} | {figure(delta)} |" in card
    assert "| mu of the Gaussian curve nearest above, an estimate |" in card
    statement = found.text()
    assert f"At other epsilons delta is at most {figure(delta)} at epsilon {figure(at)}, " in statement
    assert f"has mu = {figure(found.curve.mu)}, an estimate" in statement and "less accurate for small groups" in statement
    assert "| tuning | counted: the whole search spends epsilon 9.00 |" in card


def test_the_command_asks_every_question(tmp_path, capsys) -> None:
    path = tmp_path / "privacy.json"
    facts = record().to_dict()
    path.write_text(json.dumps(facts))
    assert run(["statement", "--run", str(path), "--as", "questions"]) == 0
    told = capsys.readouterr()
    for topic in CHECKED | LOOKED_AT:
        assert f"{topic}. " in told.out
    assert "not known to groupclip, in whole or in part: trust setting, vocabulary" in told.err
    path.write_text(json.dumps({**facts, "epsilon": facts["epsilon"] / 2}))
    assert run(["statement", "--run", str(path), "--as", "questions"]) == 2
    assert "claims other than its facts give" in capsys.readouterr().err
