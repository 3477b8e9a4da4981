"""What groupclip can't answer for in the noise is named, and what would add the same noise twice is refused."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import groupclip as gc
from check_attached import ENTRY, plan
from groupclip.errors import PrivacyViolation
from groupclip.noise.sources import InsecureNoise, NoiseSource, SecureNoise

KEY = bytes(range(32))


def attached(noise: NoiseSource | None = None, **more: object) -> tuple[nn.Module, torch.optim.Optimizer, gc.Engine]:
    model = ENTRY.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, gc.attach(model, optimizer, "layer-wise", plan(), noise=noise, **more)  # type: ignore[arg-type]


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, engine: gc.Engine, count: int) -> None:
    assert engine.ledger is not None
    data = TensorDataset(*ENTRY.batch(plan().dataset_size))
    for _, logical in zip(range(count), gc.poisson_batches(data, plan(), start=engine.ledger.steps), strict=False):
        for part in logical:
            engine.backward(ENTRY.losses(model, tuple(part)))
        optimizer.step()
        optimizer.zero_grad()


class Silent(SecureNoise):
    def add_(self, tensor: Tensor, std: float) -> None:
        """Forgot the noise."""


@pytest.mark.parametrize("source", [SecureNoise, gc.HardenedNoise])
def test_noise_under_a_key_that_was_given_is_named_and_not_resumed(source: type[SecureNoise]) -> None:
    """The stream begins anew in another engine: its noise would cancel in the difference of two releases."""
    first = attached(source(KEY))
    steps(*first, 2)
    record = first[2].record(delta=1e-5)
    assert "under a key that the user gave" in record.text() and "never written down" not in record.text()
    second = attached(source(KEY))
    with pytest.raises(
        PrivacyViolation, match=r"released 2 steps, and this engine's noise is under a key that was given"
    ):
        second[2].load_state_dict(first[2].state_dict())
    fresh = attached(source())
    fresh[2].load_state_dict(first[2].state_dict())
    steps(*fresh, 1)
    assert "under a key that the user gave" in fresh[2].statement(delta=1e-5)  # of the first two steps
    anew = attached(source())
    steps(*anew, 1)
    assert "never written down" in anew[2].statement(delta=1e-5)


def test_a_subclass_is_not_groupclips_noise() -> None:
    run = attached(Silent())
    steps(*run, 1)
    record = run[2].record(delta=1e-5)
    assert record.to_dict()["noise_source"] == "Silent" and "added by Silent, which isn't part of groupclip" in record.text()


def test_the_ledger_knows_of_a_seed_too() -> None:
    run = attached(InsecureNoise(3))
    steps(*run, 1)
    ledger = run[2].ledger
    assert ledger is not None
    for ask in (run[2].epsilon, ledger.epsilon, ledger.spent):
        with pytest.raises(PrivacyViolation, match="comes from a seed and can be subtracted again"):
            ask(delta=1e-5)
    resumed = attached()
    resumed[2].load_state_dict(run[2].state_dict())
    assert resumed[2].ledger is not None
    with pytest.raises(PrivacyViolation, match="comes from a seed"):
        resumed[2].ledger.epsilon(delta=1e-5)


def test_a_state_is_not_loaded_into_a_logical_batch() -> None:
    """Its sums were clipped at thresholds that the state may move, and the noise with them."""
    moving = gc.Adaptive(start=10.0)
    saved = attached(thresholds=moving)
    steps(*saved, 2)
    model, optimizer, engine = attached(thresholds=moving)
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    before = dict(engine.thresholds)
    with pytest.raises(PrivacyViolation, match=r"a logical batch is under way.*engine\.discard\(\)"):
        engine.load_state_dict(saved[2].state_dict())
    assert dict(engine.thresholds) == before and engine.ledger is not None and engine.ledger.steps == 0
    engine.discard()
    engine.load_state_dict(saved[2].state_dict())
    assert engine.ledger.steps == 2
    steps(model, optimizer, engine, 1)


def test_steps_of_several_threads_are_all_counted() -> None:
    """Each with its model and its engine; what they share is the record of the batches in use."""
    faults: list[BaseException] = []
    runs = [attached() for _ in range(4)]

    def train(run: tuple[nn.Module, torch.optim.Optimizer, gc.Engine]) -> None:
        try:
            steps(*run, 6)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=train, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert [run[2].ledger.steps_by_sampler for run in runs if run[2].ledger] == [{"groupclip": 6, "user": 0}] * 4


def test_a_step_is_counted_before_its_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted half-way, with noise in some gradients, it may have been seen."""
    model, optimizer, engine = attached()

    def interrupted(tensor: Tensor, std: float) -> None:
        raise KeyboardInterrupt

    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    monkeypatch.setattr(engine.noise, "add_", interrupted)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert engine.ledger is not None and engine.ledger.steps == 1
