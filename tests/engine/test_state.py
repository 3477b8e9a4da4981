"""The state of an engine: plain values, equal after a resume, refused by another run; whose sampling it was."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import groupclip as gc
from check_attached import ENTRY, attached, plan, train
from groupclip.errors import BudgetExceeded, PrivacyViolation
from groupclip.noise.sources import InsecureNoise, NoiseSource


def test_state_is_plain_and_survives_json_and_weights_only() -> None:
    model, optimizer, engine = attached()
    train(model, optimizer, engine, 2)
    state = engine.state_dict()
    assert json.loads(json.dumps(state)) == state
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == state


def test_state_holds_no_number_that_depends_on_the_data() -> None:
    """Two runs on different data of different sizes have equal states."""
    states = []
    for size, seed in ((8, 0), (3, 5)):
        model, optimizer, engine = attached()
        engine.backward(ENTRY.losses(model, ENTRY.batch(size, seed=seed)))
        optimizer.step()
        states.append(engine.state_dict())
    names = [state.pop("training") for state in states]  # which chance alone chose
    assert states[0] == states[1] and names[0] != names[1] and all(re.fullmatch("[0-9a-f]{32}", name) for name in names)


def test_a_resumed_run_has_the_ledger_of_an_uninterrupted_one() -> None:
    whole = attached()
    train(*whole, 5)
    first = attached()
    train(*first, 2)
    state = json.loads(json.dumps(first[2].state_dict()))
    second = attached()
    second[2].load_state_dict(state)
    vouched = {"delta": 1e-5, "sampling_vouched_by_user": True}
    assert second[2].epsilon(**vouched) == first[2].epsilon(**vouched)
    train(*second, 3, first=2)
    assert second[2].state_dict() == {**whole[2].state_dict(), "training": state["training"]}
    assert second[2].epsilon(**vouched) == whole[2].epsilon(**vouched)
    train(*second, 1, first=5)
    with pytest.raises(BudgetExceeded, match="all 6 planned steps are released"):
        train(*second, 1, first=6)


@pytest.mark.parametrize("name", [True, False], ids=["of another name", "of an older version"])
def test_another_trainings_state_is_refused_after_steps_of_ones_own(name: bool) -> None:
    """3 steps of A would be in no figure: its ledger would say 5, B's."""
    other, mine = attached(), attached()
    train(*other, 5)
    state = other[2].state_dict()
    if not name:
        state.pop("training")
    train(*mine, 3)
    before = mine[2].state_dict()
    with pytest.raises(PrivacyViolation, match=r"another training.*3 are counted here, 5 there.*attach a new one"):
        mine[2].load_state_dict(state)
    assert mine[2].state_dict() == before
    mine[2].load_state_dict(before)  # its own
    train(*mine, 1, first=3)
    assert mine[2].ledger is not None and mine[2].ledger.steps == 4
    mine[2].detach()
    fresh = attached(mine[0])
    fresh[2].load_state_dict(state)
    assert fresh[2].ledger is not None and fresh[2].ledger.steps == 5


@pytest.mark.parametrize("spoil", [lambda s: s.pop("noise"), lambda s: s.pop("thresholds"), lambda s: s.update(more=1)])
def test_what_is_no_state_is_refused_and_nothing_is_loaded(spoil: Any) -> None:
    before = attached()
    train(*before, 2)
    state = before[2].state_dict()
    spoil(state)
    engine = attached()[2]
    for wrong in (state, None, b"\x80\x04.", []):
        with pytest.raises(ValueError, match="not the state of an engine"):
            engine.load_state_dict(wrong)
    assert engine.ledger is not None and engine.ledger.steps == 0


@pytest.mark.parametrize("first", [InsecureNoise(1), gc.HardenedNoise(), None], ids=repr)
def test_the_noise_of_steps_before_a_resume_is_not_forgotten(first: NoiseSource | None) -> None:
    """Steps with noise of a seed stay without epsilon, and hardened noise in half a run hardens nothing."""
    before = attached(noise=first)
    train(*before, 2)
    state = json.loads(json.dumps(before[2].state_dict()))
    for noise in (None, gc.HardenedNoise()):
        model, optimizer, engine = attached(noise=noise)
        engine.load_state_dict(state)
        train(model, optimizer, engine, 1, first=2)
        record = engine.record(delta=1e-5, sampling_vouched_by_user=True)
        assert record.secure_noise == (not isinstance(first, InsecureNoise))
        both = isinstance(first, gc.HardenedNoise) and noise is not None
        assert record.to_dict()["hardened_against_floating_point_attacks"] == both
        if isinstance(first, InsecureNoise):
            with pytest.raises(PrivacyViolation, match="comes from a seed"):
                engine.epsilon(delta=1e-5, sampling_vouched_by_user=True)


class Own:
    """Says that it is secure, and adds nothing."""

    secure = True

    def add_(self, tensor: torch.Tensor, std: float) -> None:
        pass


def test_noise_that_is_not_groupclips_is_named() -> None:
    before = attached(noise=Own())
    train(*before, 2)
    state = json.loads(json.dumps(before[2].state_dict()))
    after = attached()
    after[2].load_state_dict(state)
    for engine in (before[2], after[2]):
        text = engine.statement(delta=1e-5, sampling_vouched_by_user=True)
        assert "added by Own, which isn't part of groupclip" in text and "AES" not in text
    assert "AES-256" in attached()[2].statement(delta=1e-5)  # the twin


@pytest.mark.parametrize(
    "noise", [object(), 1.0, "secure", type("Half", (), {"secure": True})()], ids=["object", "number", "text", "half"]
)
def test_what_is_no_source_of_noise_is_refused(noise: Any) -> None:
    with pytest.raises(TypeError, match="is no source of noise: it needs secure"):
        attached(noise=noise)


def test_a_resumed_run_without_noise_is_the_uninterrupted_one() -> None:
    """Weights, optimizer and ledger, step for step."""
    mechanism = plan(sigma=0.0)
    whole = attached(ENTRY.model(torch.float64), mechanism=mechanism)
    train(*whole, 4)
    model, optimizer, engine = attached(ENTRY.model(torch.float64), mechanism=mechanism)
    train(model, optimizer, engine, 2)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), engine.state_dict()], file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    model, optimizer, engine = attached(ENTRY.model(torch.float64, seed=3), mechanism=mechanism)
    for part, state in zip((model, optimizer, engine), saved, strict=True):
        part.load_state_dict(state)
    train(model, optimizer, engine, 2, first=2)
    for p, q in zip(model.parameters(), whole[0].parameters(), strict=True):
        assert torch.equal(p.detach(), q.detach())
    assert engine.state_dict() == {**whole[2].state_dict(), "training": saved[2]["training"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thresholds": 2.0}, "the saved run had other thresholds than this engine: attach with the same settings"),
        ({"style": "param-wise", "thresholds": {}}, "the saved run had other (thresholds|partition) than this engine"),
        ({"clip": "abadi"}, "the saved run had other clip than this engine"),
        ({"clip": gc.clipping.Automatic(gamma=0.1)}, "the saved run had other clip than this engine"),
        ({"mechanism": plan(sigma=1.1)}, "the saved ledger is of another plan: noise_multiplier 1.0"),
        ({"mechanism": plan(steps=7)}, "the saved ledger is of another plan: steps 6"),
    ],
)
def test_a_state_of_another_run_is_refused(options: dict[str, Any], message: str) -> None:
    model, optimizer, engine = attached()
    train(model, optimizer, engine, 2)
    if options.get("thresholds") == {}:
        options = options | {"thresholds": 1.0}
    other = attached(**options)[2]
    with pytest.raises(PrivacyViolation, match=message):
        other.load_state_dict(engine.state_dict())
    assert other.ledger is not None and other.ledger.steps == 0


def test_a_state_without_a_ledger_is_refused_by_an_engine_with_one() -> None:
    engine = attached()[2]
    free = gc.attach(ENTRY.model(), None, "layer-wise", None)
    with pytest.raises(PrivacyViolation, match="one has a mechanism and one has none"):
        engine.load_state_dict(free.state_dict())
    with pytest.raises(PrivacyViolation, match="one has a mechanism and one has none"):
        free.load_state_dict(engine.state_dict())


def test_a_state_that_goes_back_is_refused() -> None:
    """Released steps can't be taken back."""
    model, optimizer, engine = attached()
    early = engine.state_dict()
    train(model, optimizer, engine, 2)
    with pytest.raises(PrivacyViolation, match="already counts 2 released steps and the saved one 0"):
        engine.load_state_dict(early)
    assert engine.ledger is not None and engine.ledger.steps == 2


def test_a_look_at_norms_is_remembered_across_a_resume() -> None:
    model, optimizer, engine = attached()
    train(model, optimizer, engine, 1)
    assert engine.state_dict()["unsafe"] == []
    engine.unsafe_norms()
    other = attached()[2]
    other.load_state_dict(engine.state_dict())
    assert other.state_dict()["unsafe"] == ["per-sample gradient norms"]


def test_thresholds_are_read_only() -> None:
    """Noise and clipping would else be told different ones."""
    engine = attached()[2]
    with pytest.raises(TypeError):
        engine.thresholds["0"] = 1e-6  # type: ignore[index]


@pytest.mark.parametrize("fact", ["partition", "clip", "thresholds", "mechanism", "noise", "ledger"])
def test_no_fact_of_the_run_can_be_replaced(fact: str) -> None:
    engine = attached()[2]
    with pytest.raises(
        AttributeError, match=rf"engine\.{fact} can't be changed: .* Detach the engine and attach again"
    ):
        setattr(engine, fact, getattr(engine, fact))


def test_steps_by_hand_are_the_users_sampling() -> None:
    model, optimizer, engine = attached()
    train(model, optimizer, engine, 2)
    assert engine.ledger is not None and engine.ledger.steps_by_sampler == {"groupclip": 0, "user": 2}


def test_logical_batches_are_groupclips_sampling_unless_added_to() -> None:
    data = TensorDataset(*ENTRY.batch(40))
    model, optimizer, engine = attached()
    for step, logical in enumerate(gc.poisson_batches(data, plan(), microbatch=3)):
        for part in logical:
            engine.backward(ENTRY.losses(model, tuple(part)))
        if step == 4:  # samples that the sampler didn't draw
            engine.backward(ENTRY.losses(model, ENTRY.batch(2)))
        optimizer.step()
        optimizer.zero_grad()
    assert engine.ledger is not None and engine.ledger.steps_by_sampler == {"groupclip": 5, "user": 1}
    assert engine.ledger.sampling == "mixed"


def test_printed_an_engine_says_what_it_does() -> None:
    _, optimizer, engine = attached()
    optimizer.step()
    assert repr(engine) == "Engine(layer-wise, M=3, automatic, Ledger(1 of 6 steps, sampling: user))"
    model = ENTRY.model()
    clipping = gc.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "all-layer", None)
    assert repr(clipping) == "Engine(all-layer, M=1, automatic, clipping alone, NOT private)"
