"""What was spent on weights is told by the statement of every later engine on them, or on copies of them."""

from __future__ import annotations

import copy
import gc as garbage
import io
import logging
from collections.abc import Callable

import pytest
import torch
from torch import nn

import groupclip as gc
from check_attached import ENTRY, attached, plan, train
from groupclip.noise.sources import InsecureNoise
from groupclip.statement.record import model_card

DELTA = 1e-5


def private(model: nn.Module, steps: int, mechanism: gc.Mechanism | None = None, **options: object) -> gc.Engine:
    """An engine that took so many steps on batches of groupclip's, and isn't detached yet."""
    mechanism = plan(steps=6) if mechanism is None else mechanism
    model, optimizer, engine = attached(model, mechanism=mechanism, **options)
    data = torch.utils.data.TensorDataset(*ENTRY.batch(mechanism.dataset_size))
    for batch in gc.poisson_batches(data, mechanism, microbatch=40):
        for part in batch:
            engine.backward(ENTRY.losses(model, tuple(part)))
        optimizer.step()
        optimizer.zero_grad()
        if batch.step + 1 == steps:
            break
    return engine


def saved(model: nn.Module) -> nn.Module:
    """Saved and loaded, in this process."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = ENTRY.model(seed=5)
    other.load_state_dict(torch.load(file, weights_only=True))
    return other


class Body(nn.Module):
    """A part of a trained model, with a new head."""

    def __init__(self, trained: nn.Module) -> None:
        super().__init__()
        self.body, self.head = copy.deepcopy(trained[0]), nn.Linear(7, 3)  # type: ignore[index]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "the same model": lambda m: m,
    "a deep copy": copy.deepcopy,
    "saved and loaded": saved,
    "a part of it": Body,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("other", [False, True])
def test_a_later_statement_tells_what_was_spent_before(way: str, other: bool, caplog: pytest.LogCaptureFixture) -> None:
    """With the same plan or another one."""
    first = private(ENTRY.model(), 2)
    spent = first.epsilon(delta=DELTA)
    first.detach()
    assert "trained before" not in first.statement(delta=DELTA) and not caplog.records
    mechanism = gc.Mechanism(dataset_size=40, expected_batch_size=8, steps=9, noise_multiplier=2.0) if other else plan()
    second = private(WAYS[way](first.model), 3, mechanism)
    assert "these weights were trained before" in caplog.text
    own = second.epsilon(delta=DELTA)
    assert own == mechanism.spent(delta=DELTA, steps=3).epsilon
    record = second.record(delta=DELTA)
    assert [(e.steps, e.epsilon(DELTA), e.changed) for e in record.earlier] == [(2, spent, False)]
    assert record.together == (own + spent, 2 * DELTA)
    words = second.statement(delta=DELTA)
    assert "THIS IS THE COST OF THESE 3 STEPS ALONE" in words and "had been trained before, by 2 steps" in words
    assert "and not what was spent on the weights before" in words and "at delta = 2e-05" in words
    assert "| spent on these weights before | 2 steps, epsilon" in model_card(record)
    assert record.to_dict()["earlier_trainings"][0]["epsilon"] == spent


def test_a_copy_that_was_made_while_the_engine_was_attached() -> None:
    first = private(ENTRY.model(), 2)
    second = private(copy.deepcopy(first.model), 1)
    assert [e.steps for e in second.record(delta=DELTA).earlier] == [2]
    assert first.record(delta=DELTA).earlier == ()


def test_every_training_before_is_told_once() -> None:
    model = ENTRY.model()
    for steps in (1, 2, 3):
        engine = private(model, steps)
        engine.detach()
    last = private(model, 1)
    record = last.record(delta=DELTA)
    assert [e.steps for e in record.earlier] == [1, 2, 3]
    amount = record.together
    assert amount is not None and amount[1] == 4 * DELTA
    assert amount[0] == pytest.approx(sum(plan().spent(delta=DELTA, steps=n).epsilon for n in (1, 2, 3, 1)))


@pytest.mark.parametrize("how", ["loaded", "in place", "parameters of another dtype"])
def test_weights_that_were_given_other_values_since(how: str) -> None:
    """They may know nothing of the data, or all: the statement says which it can't tell."""
    first = private(ENTRY.model(), 2)
    first.detach()
    if how == "loaded":
        first.model.load_state_dict(ENTRY.model(seed=9).state_dict())
    elif how == "in place":
        with torch.no_grad():
            for p in first.model.parameters():
                p.mul_(0.5)
    else:
        first.model.double()
    _, _, second = attached(first.model)
    record = second.record(delta=DELTA)
    assert [(e.steps, e.changed) for e in record.earlier] == [(2, True)]
    assert "Steps before new values don't count if those values know nothing of the data" in private_words(second)


def private_words(engine: gc.Engine) -> str:
    assert engine.optimizer is not None
    train(engine.model, engine.optimizer, engine, 1)
    return engine.statement(delta=DELTA, sampling_vouched_by_user=True)


@pytest.mark.parametrize("why", ["seed", "sampling", "no noise"])
def test_a_training_before_for_which_nothing_is_claimed(why: str) -> None:
    if why == "seed":
        first = private(ENTRY.model(), 1, noise=InsecureNoise(1))
    elif why == "no noise":
        first = private(ENTRY.model(), 1, plan(sigma=0.0))
    else:
        model, optimizer, first = attached()
        train(model, optimizer, first, 1)
    first.detach()
    second = private(first.model, 1)
    record = second.record(delta=DELTA)
    assert record.together is None and [e.epsilon(DELTA) for e in record.earlier] == [None]
    assert "no epsilon is claimed" in second.statement(delta=DELTA)
    assert "no privacy guarantee that groupclip knows of" in second.statement(delta=DELTA)


def test_an_engine_that_took_no_step_spent_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model, _, first = attached()
    first.backward(ENTRY.losses(model, ENTRY.batch(4)))
    first.detach()
    _, _, second = attached(model)
    assert second.record(delta=DELTA).earlier == () and not caplog.records


def test_other_models_are_not_meant() -> None:
    """Fresh weights, whose biases and scales may be all alike."""

    def fresh(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3))
        for layer in (model[0], model[2]):
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        return model

    first = private(fresh(0), 1)
    first.detach()
    _, _, second = attached(fresh(1))
    assert second.record(delta=DELTA).earlier == ()


@pytest.mark.parametrize("detached", [False, True])
def test_a_few_numbers_do_not_tell_a_training(detached: bool) -> None:
    """Two models that share a bias are two models; where there is nothing but few numbers, they are all that tells."""
    first = private(ENTRY.model(), 1)
    other = ENTRY.model(seed=3)
    assert first.model[0].bias.numel() < 16  # type: ignore[index]
    other[0].bias.data.copy_(first.model[0].bias.detach())  # type: ignore[index]
    small, copied = nn.Linear(3, 2), nn.Linear(3, 2)
    batch = torch.randn(4, 3)
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
    second = gc.attach(small, optimizer, "all-layer", plan())
    second.backward(small(batch).square().sum(1))
    optimizer.step()
    copied.load_state_dict(small.state_dict())
    if detached:
        first.detach()
        second.detach()
    assert attached(other)[2].record(delta=DELTA).earlier == ()
    assert [e.steps for e in attached(copied)[2].record(delta=DELTA).earlier] == [1]


@pytest.mark.parametrize("detached", [False, True])
def test_a_start_that_models_share_was_not_trained(detached: bool) -> None:
    """One seed gives two models the same weights; a step of the first was counted, and never taken."""
    first = private(ENTRY.model(), 1)
    first.model.load_state_dict(ENTRY.model().state_dict())
    assert first.ledger is not None and first.ledger.steps == 1
    if detached:
        first.detach()
    _, _, fresh = attached(ENTRY.model())
    assert fresh.record(delta=DELTA).earlier == ()


def test_weights_with_a_loaded_state_are_told_before_the_next_step() -> None:
    """A resumed run starts from weights that it trained itself."""
    first = private(ENTRY.model(), 2)
    state, weights = first.state_dict(), copy.deepcopy(first.model.state_dict())
    second = attached(ENTRY.model(seed=4))[2]
    second.detach()
    second.model.load_state_dict(weights)
    third = attached(second.model)[2]
    third.load_state_dict(state)
    copied = copy.deepcopy(third.model)
    del first
    garbage.collect()
    assert [e.steps for e in attached(copied)[2].record(delta=DELTA).earlier] == [2]


def test_what_a_loaded_state_counts_is_not_told_twice() -> None:
    """Detached and attached again, the same run goes on by its state."""
    first = private(ENTRY.model(), 2)
    state = first.state_dict()
    first.detach()
    _, _, second = attached(first.model)
    assert [e.steps for e in second.record(delta=DELTA).earlier] == [2]
    second.load_state_dict(state)
    assert second.ledger is not None and second.ledger.steps == 2
    assert second.record(delta=DELTA).earlier == ()
    assert second.epsilon(delta=DELTA) == first.epsilon(delta=DELTA)


def test_a_saved_state_remembers() -> None:
    """A new process knows of earlier trainings what the state says."""
    first = private(ENTRY.model(), 2)
    first.detach()
    mechanism = gc.Mechanism(dataset_size=40, expected_batch_size=8, steps=9, noise_multiplier=2.0)
    second = private(first.model, 1, mechanism)
    state = second.state_dict()
    third = attached(ENTRY.model(seed=7), mechanism=mechanism)[2]
    third.load_state_dict(state)
    assert [e.steps for e in third.record(delta=DELTA).earlier] == [2]
    old = {key: value for key, value in state.items() if key != "earlier"}  # of a version that didn't tell
    fourth = attached(ENTRY.model(seed=8), mechanism=mechanism)[2]
    fourth.load_state_dict(old)
    assert fourth.record(delta=DELTA).earlier == ()


def test_the_memory_keeps_no_model_alive() -> None:
    first = private(ENTRY.model(), 1)
    first.detach()
    parameter = torch.utils.weak.TensorWeakRef(next(first.model.parameters()))
    del first
    garbage.collect()
    assert parameter() is None


def test_every_statement_says_that_checkpoints_are_unknown() -> None:
    logging.getLogger("groupclip")
    assert "doesn't know where the weights came from" in private(ENTRY.model(), 1).statement(delta=DELTA)


@pytest.mark.parametrize("message", ["engine", "thresholds", "partition"])
def test_errors_that_advise_to_attach_again_say_that_it_stays_spent(message: str) -> None:
    model, _, engine = attached()
    with pytest.raises(Exception, match="what was spent stays spent, and the next statement tells it"):
        if message == "engine":
            engine.clip = "abadi"
        elif message == "thresholds":
            engine.thresholds["0"] = 2.0  # type: ignore[index]
        else:
            model.append(nn.Linear(3, 3))  # type: ignore[operator]
            model(torch.randn(4, 5))
