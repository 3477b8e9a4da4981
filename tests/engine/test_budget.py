"""Engines that draw on one budget: one figure for parts of a model, and no step that wasn't set aside."""

import dataclasses
import errno
import itertools
import json
from pathlib import Path

import pytest
import torch

import groupclip as gc
from groupclip.errors import BudgetExceeded, GroupClipError, PrivacyViolation
from groupclip.noise.sources import InsecureNoise
from groupclip.statement.drawn import DrawnBudget
from groupclip.statement.verified import differences

PLAN = gc.Mechanism(dataset_size=40, expected_batch_size=8, steps=4, noise_multiplier=3.0)
DATA = torch.utils.data.TensorDataset(torch.randn(40, 3, generator=torch.Generator().manual_seed(0)))


@pytest.fixture
def budget(tmp_path: Path) -> gc.Budget:
    return gc.Budget(tmp_path / "data.budget", epsilon=8.0, delta=1e-5)


def attached(budget, mechanism=PLAN, **changed):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, gc.attach(model, optimizer, "all-layer", mechanism, budget=budget, **changed)


def train(model, optimizer, engine, steps: int, start: int = 0) -> None:
    for number, batch in enumerate(gc.poisson_batches(DATA, PLAN, start=start)):
        if number == steps:
            return
        optimizer.zero_grad()
        for (x,) in batch:
            engine.backward(model(x).square().sum(1))
        optimizer.step()


def test_two_engines_are_one_figure(budget):
    first, second = attached(budget), attached(budget)
    train(*first, 4)
    train(*second, 4)
    for _, _, engine in (first, second):
        engine.detach()
    twice = gc.Mechanism(dataset_size=40, expected_batch_size=8, steps=8, noise_multiplier=3.0)
    spent = budget.spent()
    assert (spent.epsilon, spent.steps, spent.note) == (twice.epsilon(delta=1e-5), 8, "")
    assert spent.epsilon < 2 * PLAN.epsilon(delta=1e-5)


def test_the_record_has_what_the_budget_held(budget):
    budget.add_guarantee(epsilon=0.5, delta=1e-7, label="a secret name")
    model, optimizer, engine = attached(budget)
    for taken in (0, 2):
        train(model, optimizer, engine, taken)
        held = engine.record(delta=1e-6).budget
        assert held == DrawnBudget(epsilon=budget.spent().epsilon, delta=1e-5, entries=2)
    engine.detach()
    record = engine.record(delta=1e-6)
    assert record.budget == held and held.epsilon > 0.5
    assert differences(facts := json.loads(json.dumps(record.to_dict()))) == [] and "secret" not in str(facts)
    assert attached(None)[2].record(delta=1e-6).budget is None


def test_a_step_is_charged_before_it_is_taken_and_detach_frees_the_rest(budget):
    model, optimizer, engine = attached(budget)
    train(model, optimizer, engine, 2)
    (entry,) = budget.entries
    assert (entry.taken, entry.planned, entry.is_open) == (2, 4, True)
    engine.detach()
    assert budget.committed().steps == 2


def test_a_plan_that_does_not_fit_is_not_attached(tmp_path):
    small = gc.Budget(tmp_path / "small", epsilon=0.5 * PLAN.epsilon(delta=1e-5), delta=1e-5)
    model = torch.nn.Linear(3, 2)
    with pytest.raises(BudgetExceeded, match="with this entry it would be"):
        gc.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "all-layer", PLAN, budget=small)
    assert type(model.weight) is torch.nn.Parameter and not small.entries


def test_a_step_that_cannot_be_charged_moves_nothing(budget):
    model, optimizer, engine = attached(budget)
    budget.close(budget.entries[0].name)
    before = model.weight.detach().clone()
    with pytest.raises(BudgetExceeded, match="was closed"):
        train(model, optimizer, engine, 1)
    assert torch.equal(model.weight.detach(), before) and engine.ledger.steps == 0


@pytest.mark.parametrize("bands", [1, 2])
def test_a_step_that_a_full_disk_refused_is_groupclips_when_it_comes_again(tmp_path, monkeypatch, bands):
    plan = dataclasses.replace(PLAN, adjacency="zero-out", bands=bands)
    budget = gc.Budget(tmp_path / "banded", epsilon=20.0, delta=1e-5, adjacency="zero-out")
    model, optimizer, engine = attached(budget, plan)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for number, batch in enumerate(gc.poisson_batches(DATA, plan)):
        optimizer.zero_grad()
        for (x,) in batch:
            engine.backward(model(x).square().sum(1))
        if number in (0, 2):
            before = model.weight.detach().clone()
            with monkeypatch.context() as disk:
                disk.setattr("groupclip.durable.os.write", full)
                for _ in range(2):
                    with pytest.raises(OSError, match="No space"):
                        optimizer.step()
            assert torch.equal(model.weight.detach(), before) and engine.ledger.steps == number
        optimizer.step()
    assert engine.ledger.steps_by_sampler == {"groupclip": 4, "user": 0} and engine.ledger.rounds == plan.rounds()
    (entry,) = budget.entries
    assert (entry.taken, entry.theirs) == (4, 0)
    assert engine.epsilon(delta=1e-5) == plan.epsilon(delta=1e-5)


def test_a_batch_that_had_its_step_is_not_groupclips_again(budget):
    model, optimizer, engine = attached(budget)
    for batch in gc.poisson_batches(DATA, PLAN):
        parts = [x for (x,) in batch]
        for _ in range(2):
            optimizer.zero_grad()
            for x in parts:
                engine.backward(model(x).square().sum(1))
            optimizer.step()
        break
    assert engine.ledger.steps_by_sampler == {"groupclip": 1, "user": 1}


def test_a_saved_run_goes_on_with_its_own_entry(budget):
    model, optimizer, engine = attached(budget)
    train(model, optimizer, engine, 1)
    state = engine.state_dict()
    train(model, optimizer, engine, 1, start=1)  # lost in a crash: the state doesn't know of it
    name = state["ledger"]["budget"]
    for other in (None, budget):
        model, optimizer, again = attached(other)
        with pytest.raises(PrivacyViolation, match="draws on a budget"):
            again.load_state_dict(state)
        again.detach()
    model, optimizer, again = attached(budget.reopen(name))
    again.load_state_dict(state)
    with pytest.raises(BudgetExceeded, match="4 of 4 steps charged"):
        train(model, optimizer, again, 3, start=1)
    assert budget.taken(name) == 4 and again.ledger.steps == 3


def test_adaptive_thresholds_are_in_the_plan_that_is_charged(budget):
    model, optimizer, engine = attached(budget, thresholds=gc.Adaptive(start=1.0))
    train(model, optimizer, engine, 4)
    assert budget.spent().epsilon == PLAN.epsilon(delta=1e-5)
    assert engine.noise_std > PLAN.noise_multiplier * sum(engine.thresholds.values())  # more noise pays for the counts


def test_batches_of_the_users_own_are_told(budget):
    model, optimizer, engine = attached(budget)
    engine.backward(model(DATA.tensors[0][:8]).square().sum(1))
    optimizer.step()
    assert "1 steps were on batches that groupclip didn't draw" in budget.spent().note


@pytest.mark.parametrize(
    ("mechanism", "changed", "error", "message"),
    [
        (PLAN, {"noise": InsecureNoise(1)}, PrivacyViolation, "noise that a seed reproduces"),
        (None, {}, ValueError, "is for a private training"),
    ],
)
def test_what_a_budget_cannot_count_is_refused(budget, mechanism, changed, error, message):
    with pytest.raises(error, match=message):
        attached(budget, mechanism, **changed)
    assert not budget.entries


def test_what_is_no_budget_or_of_another_plan_is_refused(budget):
    with pytest.raises(TypeError, match=r"must be a groupclip\.Budget"):
        attached("data.budget")
    other = gc.Mechanism(dataset_size=40, expected_batch_size=8, steps=5, noise_multiplier=3.0)
    with pytest.raises(ValueError, match="reservation is of another plan"):
        attached(budget.reserve(other))


ROUNDS = gc.Mechanism(dataset_size=40, expected_batch_size=8, steps=6, noise_multiplier=3.0)


def one_round(path: Path, steps: int = 2, mechanism=ROUNDS):
    """As a client that was restarted: everything is made anew, and only the file and the weights go on."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    part = gc.Budget(path).go_on(mechanism, label="rounds")
    engine = gc.attach(model, optimizer, "all-layer", mechanism, budget=part)
    for batch in itertools.islice(gc.poisson_batches(DATA, mechanism, start=engine.ledger.steps), steps):
        optimizer.zero_grad()
        for (x,) in batch:
            engine.backward(model(x).square().sum(1))
        optimizer.step()
    engine.detach()
    return engine


def test_rounds_are_one_run(budget):
    for number in range(1, 4):
        engine = one_round(budget.path)
        assert engine.ledger.steps_by_sampler == {"groupclip": 2 * number, "user": 0}
        assert engine.epsilon(delta=1e-5) == ROUNDS.epsilon(delta=1e-5, steps=2 * number)
        assert "trained before" not in engine.statement(delta=1e-5)
    assert budget.spent().epsilon == pytest.approx(ROUNDS.epsilon(delta=1e-5), rel=1e-9)
    assert not list(gc.poisson_batches(DATA, ROUNDS, start=engine.ledger.steps))
    with pytest.raises(PrivacyViolation, match=r"noise_multiplier is 3\.0, and not 2\.9"):
        one_round(budget.path, mechanism=dataclasses.replace(ROUNDS, noise_multiplier=2.9))


def test_weights_of_an_earlier_round_are_not_counted_twice(budget, caplog):
    model = torch.nn.Linear(3, 2)
    for number in range(1, 3):  # the same weights, as a single client gets them back
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        engine = gc.attach(model, optimizer, "all-layer", ROUNDS, budget=budget.go_on(ROUNDS, label="rounds"))
        train_on(model, optimizer, engine)
        engine.detach()
        record = engine.record(delta=1e-5)
        assert (record.steps, record.earlier) == (number, ())
    assert not caplog.records  # engine.epsilon() is of all rounds
    gc.attach(model, optimizer, "all-layer", PLAN).detach()
    assert "covers this engine's steps alone" in caplog.text


@pytest.mark.parametrize("seeded", [False, True], ids=["with a budget", "with noise of a seed"])
def test_another_training_of_the_same_plan_is_told_however_many_steps_follow(budget, seeded):
    """Rounds are known by their entry in the budget: a like plan alone doesn't make an earlier training one of them."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = {"noise": InsecureNoise(0)} if seeded else {"budget": budget.go_on(ROUNDS, label="one")}
    engine = gc.attach(model, optimizer, "all-layer", ROUNDS, **first)
    train_on(model, optimizer, engine)
    engine.detach()
    for number in range(1, 3):
        engine = gc.attach(model, optimizer, "all-layer", ROUNDS, budget=budget.go_on(ROUNDS, label="another"))
        train_on(model, optimizer, engine)
        engine.detach()
        record = engine.record(delta=1e-5)
        assert record.steps == number and [e.steps for e in record.earlier] == [1]
        assert bool(record.earlier[0].obstacle) == seeded


class Parts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh())
        self.head = torch.nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


HEAD = gc.Mechanism(dataset_size=40, expected_batch_size=20, steps=3, noise_multiplier=2.0)


def attached_to(part, mechanism, budget=None):
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    return optimizer, gc.attach(part, optimizer, "all-layer", mechanism, budget=budget)


def train_parts(model, encoder, head) -> None:
    """Both engines are attached; each trains its part while the other's is fixed."""
    optimizer, engine = encoder
    model.head.requires_grad_(False)
    for batch in gc.poisson_batches(DATA, PLAN):
        for (x,) in batch:
            engine.backward(model(x).square().sum(1))
        optimizer.step()
        optimizer.zero_grad()
    model.head.requires_grad_(True)
    optimizer, engine = head
    for batch in gc.poisson_batches(DATA, HEAD):
        for (x,) in batch:
            with torch.no_grad():
                features = model.encoder(x)
            engine.backward(model.head(features).square().sum(1))
        optimizer.step()
        optimizer.zero_grad()


def test_two_engines_on_parts_of_one_model_are_one_figure(budget):
    """The figure is held against convolutions in tests/privacy/test_composition.py, and here against the plans entered by hand."""
    model = Parts()
    engines = attached_to(model.encoder, PLAN, budget), attached_to(model.head, HEAD, budget)
    train_parts(model, *engines)
    for _, engine in engines:
        assert engine.ledger.steps_by_sampler == {"groupclip": engine.mechanism.steps, "user": 0}
        engine.detach()
    by_hand = gc.Budget(budget.path.with_name("by hand"), epsilon=8.0, delta=1e-5)
    by_hand.add(PLAN)
    by_hand.add(HEAD)
    each = [plan.epsilon(delta=1e-5) for plan in (PLAN, HEAD)]
    assert budget.spent() == by_hand.spent() and budget.spent().steps == 7
    assert max(each) < budget.spent().epsilon < 0.95 * sum(each)


def test_two_engines_on_parts_without_a_budget_tell_their_own_figures_and_that_they_add_up():
    model = Parts()
    engines = attached_to(model.encoder, PLAN), attached_to(model.head, HEAD)
    train_parts(model, *engines)
    for _, engine in engines:
        assert engine.epsilon(delta=1e-5) == engine.mechanism.epsilon(delta=1e-5)
        told = engine.statement(delta=1e-5)
        assert "Other trainings on these data, of other models or of other parts of this model, spend epsilon too" in told


def test_one_pass_through_the_parts_of_two_engines_is_refused():
    model = Parts()
    (first, engine), (second, other) = attached_to(model.encoder, PLAN), attached_to(model.head, HEAD)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(PrivacyViolation, match=r"call engine\.backward\(losses\) with one loss per sample"):
        engine.backward(model(DATA.tensors[0][:8]).square().sum(1))
    for optimizer in (first, second):
        optimizer.zero_grad()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert engine.ledger.steps == other.ledger.steps == 0
    with pytest.raises(GroupClipError, match="is attached already"):  # a parameter is in one engine
        attached_to(model, PLAN)


def test_a_part_that_was_trained_before_is_told_although_it_is_frozen_now():
    model = Parts()
    model.head.requires_grad_(False)
    optimizer = torch.optim.SGD(model.encoder.parameters(), lr=0.1)
    engine = gc.attach(model, optimizer, "all-layer", PLAN)
    train(model, optimizer, engine, 4)
    engine.detach()
    model.requires_grad_(True)
    model.encoder.requires_grad_(False)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    engine = gc.attach(model, optimizer, "all-layer", PLAN)
    train(model, optimizer, engine, 4)
    record = engine.record(delta=1e-5)
    assert [(e.steps, e.mechanism) for e in record.earlier] == [(4, PLAN)]
    assert record.together == (pytest.approx(2 * PLAN.epsilon(delta=1e-5)), 2e-5)
    assert "THIS IS THE COST OF THESE 4 STEPS ALONE" in engine.statement(delta=1e-5)


def train_on(model, optimizer, engine) -> None:
    for batch in itertools.islice(gc.poisson_batches(DATA, ROUNDS, start=engine.ledger.steps), 1):
        for (x,) in batch:
            engine.backward(model(x).square().sum(1))
        optimizer.step()
        optimizer.zero_grad()


def test_two_processes_in_one_round_are_refused(budget):
    both = []
    for _ in range(2):
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        part = budget.go_on(ROUNDS, label="rounds")
        both.append((model, optimizer, gc.attach(model, optimizer, "all-layer", ROUNDS, budget=part)))
    train_on(*both[0])
    before = both[1][0].weight.detach().clone()
    with pytest.raises(PrivacyViolation, match="another process takes steps of it"):
        train_on(*both[1])
    assert torch.equal(both[1][0].weight.detach(), before) and both[1][2].ledger.steps == 0
    assert budget.spent().steps == 2  # the refused step stays charged
