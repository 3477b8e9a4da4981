"""Every field that a published guarantee needs is in the record, in the words and on the model card of a real run.

The list: unit, adjacency, epsilon, delta, mechanism, sample rate, steps, noise multiplier, thresholds and what moving them
cost, normalisation, sampling used and assumed, accountant and version, what is released, tuning, random numbers, unsafe
statistics. An outside reader of a published card missed clip norm, sampling rate and normalisation: they are here.
"""

from __future__ import annotations

import re

import pytest
import torch

import groupclip as gc
from check_attached import ENTRY, attached, train
from groupclip.noise.sources import InsecureNoise
from groupclip.privacy.figures import figure
from groupclip.statement.record import PrivacyRecord, model_card


@pytest.fixture(scope="module")
def record() -> PrivacyRecord:
    """Of three steps with thresholds that move, after a look at norms."""
    model, optimizer, engine = attached(thresholds=gc.Adaptive(start=2.0))
    train(model, optimizer, engine, 3)
    engine.unsafe_norms()
    return engine.record(delta=1e-4, sampling_vouched_by_user=True)


# field -> key of the record; row of the card's table; words of the statement
FIELDS = {
    "unit of privacy": ("unit_of_privacy", r"unit of privacy \| one sample: one row", r"unit of privacy is one sample"),
    "adjacency": ("adjacency", r"neighbouring data sets \| add-or-remove-one", r"adding or removing that one sample"),
    "epsilon": ("epsilon", r"epsilon \| \d", r"epsilon = \d"),
    "delta": ("delta", r"delta \| 0\.0001", r"at delta = 0\.0001"),
    "several samples of a person": (
        "epsilon_by_samples_of_a_person", r"epsilon of a person with 8 samples, at the same delta \| \d",
        r"at the same delta, epsilon is [\d.]+ for one with 2, [\d.]+ for one with 4 and [\d.]+ for one with 8 samples",
    ),
    "mechanism": ("mechanism", r"mechanism \| Poisson-sampled Gaussian \(DP-SGD", r"Gaussian noise was added to the sum"),
    "sample rate": ("sample_rate", r"sample rate q \| 0\.2 ", r"with probability q = 0\.2"),
    "dataset size": ("dataset_size", r"dataset size \| 40 ", r"each of the 40 samples"),
    "steps": ("steps_taken", r"steps taken of planned \| 3 of 6", r"3 of 6 planned steps were taken"),
    "planned steps": ("steps_planned", r"steps taken of planned \| 3 of 6", r"3 of 6 planned steps were taken"),
    "noise multiplier": ("noise_multiplier", r"noise multiplier \| 1 ", r"noise multiplier 1\)"),
    "clip function": ("clip", r"clip function \| automatic", r"clipped \(automatic\)"),
    "thresholds": ("groups", r"group \| threshold R_m \| noise std", r"threshold and the noise of every group"),
    "clip norm of the whole": ("groups", r"one sample adds to the sum \| at most \d", r"one sample adds at most \d"),
    "groups": ("partition_style", r"groups \| 3 \(layer-wise\)", r"in 3 groups of parameters \(layer-wise\)"),
    "cost of moving thresholds": (
        "other_releases", r"also released, noise multiplier \| counts of gradients within .*multiplier 10\)",
        r"paid for in the same figure: counts of gradients",
    ),
    "normalisation": (
        "normalised_by", r"the sum is divided by \| the expected batch size, 8", r"divided by the expected batch size, 8",
    ),
    "losses assumed": (
        "losses_assumed", r"losses assumed \| each of one sample alone",
        r"rests on losses of single samples, which groupclip took as they were given: the loss of one sample mustn't depend on "
        r"another sample of its batch",
    ),
    "sampling assumed": ("sampling_assumed", r"sampling assumed \| Poisson", r"The figure assumes Poisson samples"),
    "sampling used": (
        "sampling_used", r"sampling used \| the user's own, vouched for, in 3 steps", r"The sampling was the user's own",
    ),
    "accountant": ("accountant", r"accountant \| (PLD|RDP), dp-accounting \d", r"The (PLD|RDP) accountant of"),
    "version of the accountant": (
        "accounting_library", r"accountant \| (PLD|RDP), dp-accounting 0\.6\.\d", r"dp-accounting 0\.6\.\d",
    ),
    "what is released": ("released", r"released \| the noisy gradient of every step", r"the weights after every step"),
    "tuning": ("tuning_accounted", r"tuning \| not accounted", r"Tuning is not accounted"),
    "random numbers": ("secure_noise", r"noise \| secure", r"cryptographic generator \(AES-256"),
    "unsafe statistics": (
        "unsafe_statistics", r"un-noised statistics looked at \| per-sample gradient norms",
        r"UN-NOISED STATISTICS WERE LOOKED AT during training: per-sample gradient norms",
    ),
    "floating point": (
        "hardened_against_floating_point_attacks", r"hardened against floating-point attacks \| no", r"isn't hardened",
    ),
    "plan": ("plan_hash", r"plan \(SHA-256\) \| [0-9a-f]{64}", ""),
}  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_the_field_is_in_record_words_and_card(field: str, record: PrivacyRecord) -> None:
    key, row, words = FIELDS[field]
    card = model_card(record).replace("\\", "")
    assert record.to_dict()[key] is not None
    assert re.search(rf"^\| {row}", card, re.MULTILINE), f"no row {row!r} on the card"
    assert re.search(words, record.text()), f"no words {words!r} in the statement"
    assert re.search(words, card)


def test_the_figures_are_those_of_the_run(record: PrivacyRecord) -> None:
    facts = record.to_dict()
    assert facts["epsilon"] == record.mechanism.epsilon(delta=1e-4, steps=3)
    assert f"| epsilon | {figure(facts['epsilon'])} |" in model_card(record)
    assert [group["threshold"] for group in facts["groups"]] == list(record.thresholds.values())
    assert facts["plan_hash"] == record.mechanism.plan_hash


def test_random_numbers_of_a_seed_are_named() -> None:
    model, optimizer, engine = attached(noise=InsecureNoise(1))
    train(model, optimizer, engine, 1)
    card = model_card(engine.record(delta=1e-5))
    assert "| noise | INSECURE: reproducible from a seed |" in card and "NOT PRIVATE" in card


# ------------------------------------------------------------------ unsafe names

LOOKS = {
    "unsafe_norms": lambda engine: engine.unsafe_norms(),
    "unsafe_clip_fractions": lambda engine: engine.unsafe_clip_fractions(),
    "unsafe_look": lambda engine: engine.unsafe_look("mean loss on the training data"),
}
#: What else of an engine is public. None of it tells of samples without noise.
SAFE = {
    "backward", "detach", "discard", "epsilon", "forward_on", "load_state_dict", "noise_std", "noise_stds", "per_sample", "record",
    "state_dict", "statement",
    "clip", "ledger", "mechanism", "model", "noise", "optimizer", "partition", "thresholds", "views",
}  # fmt: skip


def test_what_has_no_noise_has_an_unsafe_name() -> None:
    engine = attached()[2]
    assert {name for name in dir(engine) if not name.startswith("_")} == SAFE | set(LOOKS)


@pytest.mark.parametrize("look", LOOKS)
def test_an_unsafe_name_marks_the_run(look: str) -> None:
    model, optimizer, engine = attached()
    engine.backward(ENTRY.losses(model, ENTRY.batch(8)))
    assert "UN-NOISED" not in engine.statement(delta=1e-5)
    LOOKS[look](engine)
    optimizer.step()
    resumed = attached()[2]
    resumed.load_state_dict(engine.state_dict())
    for run in (engine, resumed):
        record = run.record(delta=1e-5)
        assert record.unsafe_statistics
        for told in (record.text(), model_card(record)):
            assert "UN-NOISED STATISTICS WERE LOOKED AT during training" in told
            assert all(name in told for name in record.unsafe_statistics)


def test_the_share_that_was_clipped() -> None:
    model, _, engine = attached(thresholds=[1e-9, 1e9, 1.0])
    engine.backward(ENTRY.losses(model, ENTRY.batch(8)))
    norms = engine.unsafe_norms()
    assert engine.unsafe_clip_fractions() == {"0": 1.0, "2": 0.0, "4": float((norms["4"] > 1).double().mean())}
    engine.discard()
    engine.backward(ENTRY.losses(model, ENTRY.batch(0)))
    assert engine.unsafe_clip_fractions() == {"0": 0.0, "2": 0.0, "4": 0.0}


def test_a_look_needs_a_name() -> None:
    with pytest.raises(ValueError, match="needs the name of what was looked at"):
        attached()[2].unsafe_look(" ")


def test_gradients_have_noise_whenever_a_step_lets_them_go() -> None:
    """p.grad after a step is what the optimizer saw. Before it, it is the clipped sum, and detaching clears it."""
    model, optimizer, engine = attached()
    engine.backward(ENTRY.losses(model, ENTRY.batch(8)))
    clipped = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    optimizer.step()
    assert not any(torch.allclose(p.grad * 8, g) for p, g in zip(model.parameters(), clipped, strict=True))  # type: ignore[operator]
    optimizer.zero_grad()
    engine.backward(ENTRY.losses(model, ENTRY.batch(8)))
    engine.detach()
    assert all(p.grad is None for p in model.parameters())
