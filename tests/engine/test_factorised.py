"""Steps with correlated noise: what the optimizer gets is C^-1 of independent noise in every group; which batches are refused.

Correlations are judged by ``faults`` of tests/noise/test_correlated.py, whose false-alarm rate is below 1e-6 a call.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import groupclip as gc
from groupclip.errors import PrivacyViolation, UnsupportedOperation
from groupclip.noise.correlated import bytes_kept
from groupclip.noise.jointly import add_to_all
from groupclip.noise.sources import InsecureNoise, SecureNoise
from groupclip.privacy.stretches import rounds_in
from groupclip.privacy.toeplitz import coefficients
from groupclip.statement.verified import differences
from tests.noise.test_correlated import N, faults

DATA = TensorDataset(torch.randn(240, 8, generator=torch.Generator().manual_seed(0)), torch.arange(240) % 3)
STEPS, BANDS, BATCH = 12, 4, 20


def plan(bands: int | str = BANDS, sigma: float | None = 1.5, steps: int = STEPS) -> gc.Mechanism:
    return gc.Mechanism(
        dataset_size=240, expected_batch_size=BATCH, steps=steps, noise_multiplier=sigma, adjacency="zero-out", bands=bands
    )


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3))


class Wide(nn.Module):
    """Two layers of N weights each, and no bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, N // 8, bias=False), nn.Linear(N // 8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def attached(model: nn.Module, mechanism: gc.Mechanism, style: Any = "layer-wise", **options: Any) -> tuple[gc.Engine, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return gc.attach(model, optimizer, style, mechanism, **options), optimizer


def losses(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def step(engine: gc.Engine, optimizer: Any, batch: Any, weight: float = 1.0) -> None:
    for piece in batch:
        engine.backward(losses(engine.model, piece) * weight)
    optimizer.step()


def steps_of_which_the_third_fails(engine: gc.Engine, optimizer: Any, error: str) -> Iterator[bool]:
    """Take four steps, each after it was yielded whether it fails; the third is refused by an OSError of these words."""
    for batch in gc.logical_batches(DATA, engine.mechanism, 64):
        yield batch.step == 2
        if batch.step == 2:
            with pytest.raises(OSError, match=error):
                step(engine, optimizer, batch)
            engine.discard()
        else:
            step(engine, optimizer, batch)
        optimizer.zero_grad()
        if batch.step == 3:
            return


def train(engine: gc.Engine, optimizer: Any, steps: int = STEPS, start: int = 0) -> None:
    for batch in gc.logical_batches(DATA, engine.mechanism, 64, start=start):
        step(engine, optimizer, batch)
        optimizer.zero_grad()
        if engine.ledger.steps == start + steps:
            break


def released_noise(engine: gc.Engine, optimizer: Any, steps: int = STEPS, start: int = 0) -> dict[str, np.ndarray]:
    """``[steps, N]`` by parameter: gradients of samples that add nothing, times the batch size."""
    found: dict[str, list[np.ndarray]] = {}
    for batch in gc.logical_batches(DATA, engine.mechanism, 240, start=start):
        step(engine, optimizer, batch, weight=0.0)
        for name, param in engine.model.named_parameters():
            with torch._C.DisableTorchFunctionSubclass():
                grad = param.grad.detach() if param.grad is not None else torch.full_like(param.detach(), np.nan)
                found.setdefault(name, []).append(grad.double().numpy().ravel() * BATCH)
        optimizer.zero_grad()
        if engine.ledger.steps == start + steps:
            break
    return {name: np.stack(rows) for name, rows in found.items()}


@pytest.mark.parametrize(
    ("style", "options"),
    [
        ("all-layer", {}),
        ("layer-wise", {"thresholds": [0.5, 2.0]}),
        ("layer-wise", {"thresholds": [0.5, 2.0], "allocation": "threshold"}),
        ({"first.weight": "a", "second.weight": "b"}, {"allocation": "dimension"}),
    ],
    ids=["one group", "two thresholds", "noise by threshold", "a mapping"],
)
def test_the_noise_is_as_designed_in_every_group(style: Any, options: dict[str, Any]) -> None:
    engine, optimizer = attached(Wide(), plan(), style, **options)
    column = coefficients(STEPS, BANDS)
    stds = {name: engine.noise_stds[group] for group in engine.partition.names for name in engine.partition[group]}
    for name, noise in released_noise(engine, optimizer).items():
        assert faults(noise, stds[name], column) == set()
        assert faults(noise, 1.1 * stds[name], column) == {"size"}
    engine.detach()


def test_one_band_is_independent_noise() -> None:
    engine, optimizer = attached(Wide(), plan(bands=1))
    for noise in released_noise(engine, optimizer, 6).values():
        assert faults(noise, engine.noise_std, (1.0,)) == set()
        assert "lag 1" in faults(noise, engine.noise_std, coefficients(STEPS, BANDS))
    engine.detach()


def test_one_band_is_dp_sgd_bit_for_bit() -> None:
    """Against the noise of the source, added by hand to the clipped sums of the same samples."""
    key = bytes(range(32))
    engine, optimizer = attached(small(), plan(bands=1), noise=InsecureNoise(5))
    model, source = small(), InsecureNoise(5)
    clipping = gc.attach(model, None, "layer-wise", None)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in gc.logical_batches(DATA, engine.mechanism, 240, key=key):
        rows = list(batch)
        step(engine, optimizer, rows)
        for piece in rows:
            clipping.backward(losses(model, piece))
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            sums = [p.grad.as_subclass(Tensor) for p in model.parameters()]
            add_to_all(source, [(total, engine.noise_std) for total in sums])
            torch._foreach_div_(sums, BATCH)
            for theirs, total in zip(engine.model.parameters(), sums, strict=True):
                assert torch.equal(theirs.grad, total)
        plain.step()
        optimizer.zero_grad()
        clipping.discard()
        for theirs, own in zip(engine.model.parameters(), model.parameters(), strict=True):
            assert torch.equal(theirs.detach(), own.detach())
    engine.detach()
    clipping.detach()


def test_a_plan_without_bands_is_the_same_plan() -> None:
    assert plan(bands=1) == gc.Mechanism(
        dataset_size=240, expected_batch_size=BATCH, steps=STEPS, noise_multiplier=1.5, adjacency="zero-out"
    )


def test_a_whole_run_is_claimed_and_its_record_verified(caplog: pytest.LogCaptureFixture) -> None:
    engine, optimizer = attached(small(), plan())
    train(engine, optimizer)
    assert caplog.records == []
    assert (engine.ledger.sampling, engine.ledger.steps, engine.ledger.rounds) == ("groupclip", 12, 3)
    assert engine.epsilon(delta=1e-5) == plan().epsilon(delta=1e-5)
    told = engine.statement(delta=1e-5)
    assert "correlated with that of the 3 steps before" in told and "accounted as 3 rounds" in told
    assert "dealt into 4 parts at random" in told and "--bands 4 --rounds 3" in told
    record = json.loads(json.dumps(engine.record(delta=1e-5).to_dict()))
    assert (record["bands"], record["rounds"], record["sampling_assumed"]) == (4, 3, "cyclic Poisson")
    assert differences(record) == []
    assert any("rounds" in each for each in differences({**record, "rounds": 2}))
    assert any("epsilon" in each for each in differences({**record, "rounds": 4}))
    assert any("plan_hash" in each for each in differences({**record, "bands": 3}))
    assert any("mechanism" in each for each in differences({**record, "bands": 1}))
    engine.detach()


def test_a_batch_of_ones_own_is_refused_and_nothing_moves() -> None:
    engine, optimizer = attached(small(), plan())
    before = {n: p.detach().clone() for n, p in engine.model.named_parameters()}
    rows = DATA[:BATCH]
    for _ in range(2):
        engine.backward(losses(engine.model, rows))
        with pytest.raises(PrivacyViolation, match=r"a batch of your own.*logical_batches.*or plan with bands=1"):
            optimizer.step()
        engine.discard()
    assert engine.ledger.steps == 0
    assert all(torch.equal(p.detach(), before[n]) for n, p in engine.model.named_parameters())
    with pytest.raises(PrivacyViolation, match="attach again"):  # it may have chosen its batches by what is in them
        train(engine, optimizer)
    engine.discard()
    engine.detach()
    again, optimizer = attached(engine.model, plan())
    train(again, optimizer, 3)
    assert again.ledger.steps == 3
    again.detach()


def test_a_batch_that_is_left_out_is_refused() -> None:
    engine, optimizer = attached(small(), plan())
    batches = iter(gc.logical_batches(DATA, plan(), 64))
    step(engine, optimizer, next(batches))
    optimizer.zero_grad()
    left = next(batches)
    del left
    with pytest.raises(PrivacyViolation, match="one before it had none"):
        step(engine, optimizer, next(batches))
    engine.discard()
    engine.detach()


def test_a_second_step_on_one_batch_is_refused() -> None:
    engine, optimizer = attached(small(), plan())
    batch = next(iter(gc.logical_batches(DATA, plan(), 240)))
    rows = list(batch)
    step(engine, optimizer, rows)
    optimizer.zero_grad()
    with pytest.raises(PrivacyViolation, match="one that had a step already"):
        step(engine, optimizer, rows)
    assert engine.ledger.steps == 1
    engine.discard()
    engine.detach()


def test_batches_under_a_given_key_are_refused() -> None:
    engine, optimizer = attached(small(), plan())
    with pytest.raises(PrivacyViolation, match="without key="):
        for batch in gc.logical_batches(DATA, plan(), 64, key=bytes(32)):
            step(engine, optimizer, batch)
    engine.discard()
    engine.detach()


def test_a_new_iterator_begins_the_noise_anew_and_the_ledger_counts_it() -> None:
    engine, optimizer = attached(Wide(), plan())
    first = released_noise(engine, optimizer, 6)
    second = released_noise(engine, optimizer, 6, start=6)
    column = coefficients(STEPS, BANDS)
    for name in first:
        assert faults(second[name], engine.noise_std, column) == set()
        between = np.corrcoef(np.concatenate([first[name], second[name]]))[:6, 6:]
        assert (abs(between) < 6 / np.sqrt(N)).all()
    assert (engine.ledger.rounds, plan().rounds()) == (4, 3)
    assert engine.epsilon(delta=1e-5) == plan().spent(delta=1e-5, rounds=4).epsilon > plan().epsilon(delta=1e-5)
    engine.detach()


def test_a_resumed_run_begins_anew_and_says_what_that_costs(caplog: pytest.LogCaptureFixture) -> None:
    first, optimizer = attached(small(), plan())
    train(first, optimizer, 6)
    state = json.loads(json.dumps(first.state_dict()))
    assert state["ledger"]["begun"] == [0]
    first.detach()
    second, optimizer = attached(small(), plan())
    second.load_state_dict(state)
    with caplog.at_level(logging.WARNING, logger="groupclip"):
        train(second, optimizer, 6, start=6)
    assert (second.ledger.steps, second.ledger.rounds) == (12, 4)
    (warned,) = [each.getMessage() for each in caplog.records]
    assert "begun anew at step 7" in warned and "Stop after step 10 to keep it" in warned  # 6 and 4 steps: 3 rounds, the plan's
    assert plan().rounds() == rounds_in((0, 6), 10, BANDS) < rounds_in((0, 6), 11, BANDS)
    told = second.statement(delta=1e-5)
    assert "1 of these rounds came on top, because the noise was begun anew when the run was resumed" in told
    record = json.loads(json.dumps(second.record(delta=1e-5).to_dict()))
    assert record["rounds"] == 4 and differences(record) == []
    second.detach()


def test_another_sigma_in_a_resumed_run_is_refused() -> None:
    first, optimizer = attached(small(), plan())
    train(first, optimizer, 2)
    second, _ = attached(small(), plan(sigma=1.6))
    with pytest.raises(PrivacyViolation, match=r"another plan: noise_multiplier"):
        second.load_state_dict(first.state_dict())
    third, _ = attached(small(), plan(bands=3))
    with pytest.raises(PrivacyViolation, match=r"another plan: bands 4 \(here 3\)"):
        third.load_state_dict(first.state_dict())
    for engine in (first, second, third):
        engine.detach()


def test_a_parameter_that_is_frozen_for_a_while_keeps_the_noise_of_its_place() -> None:
    engine, optimizer = attached(Wide(), plan())
    rows: list[np.ndarray] = []
    for batch in gc.logical_batches(DATA, plan(), 240):
        second = dict(engine.model.named_parameters())["second.weight"]
        second.requires_grad_(batch.step not in (4, 5))
        step(engine, optimizer, batch, weight=0.0)
        with torch._C.DisableTorchFunctionSubclass():
            rows.append(np.zeros(N) if second.grad is None else second.grad.detach().double().numpy().ravel() * BATCH)
        optimizer.zero_grad()
    column = coefficients(STEPS, BANDS)
    seen = np.stack(rows)
    # rows of C W that don't reach the steps that weren't seen
    whitened = np.stack([sum(c * seen[t - k] for k, c in enumerate(column) if t >= k) for t in (0, 1, 2, 3, 9, 10, 11)])
    whitened /= engine.noise_std
    assert (abs(whitened.std(axis=1) - 1) < 6 / np.sqrt(2 * N)).all()
    assert (abs(np.corrcoef(whitened) - np.eye(7)) < 6 / np.sqrt(N)).all()
    engine.detach()


def share_in_single(sums: Tensor) -> float:
    """Of float64 noise, some 1e-5 of the numbers lie so near one of float32."""
    return float((abs(sums - sums.float().double()) <= 1e-13 * abs(sums)).double().mean())


@pytest.mark.parametrize(
    ("change", "begun", "kept"),
    [(nn.Module.double, [0, 3], torch.float64), (nn.Module.bfloat16, [0], torch.float32)],
    ids=["wider", "half, whose noise is kept in single"],
)
def test_a_wider_type_of_parameters_begins_the_noise_anew_and_that_is_charged(
    change: Any, begun: list[int], kept: torch.dtype
) -> None:
    """Noise that stayed in float32 would leave the low bits of sums in float64 bare."""
    engine, optimizer = attached(Wide(), plan())
    sums: list[Tensor] = []
    for batch in gc.logical_batches(DATA, plan(), 240):
        if batch.step == 3:
            change(engine.model)
        kind = next(engine.model.parameters()).dtype
        for x, y in batch:
            engine.backward(F.cross_entropy(engine.model(x.to(kind)), y, reduction="none") * 0.0)
        optimizer.step()
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            sums.append(torch.cat([p.grad.detach().double().flatten() * BATCH for p in engine.model.parameters()]))
        optimizer.zero_grad()
        if batch.step == 5:
            break
    assert engine.state_dict()["ledger"]["begun"] == begun
    assert (engine.ledger.steps, engine.ledger.rounds) == (6, 2)
    assert {each.dtype for each in engine._step._factorised._noise._before[0]} == {kept}
    if kept == torch.float64:
        for after in sums[3:]:
            assert share_in_single(after) < 1e-3
            for before in sums[:3]:
                assert abs(float(torch.corrcoef(torch.stack([after, before]))[0, 1])) < 6 / np.sqrt(2 * N)
    assert share_in_single(sums[0].float().double() / BATCH * BATCH) > 0.999  # the twin: what float32's noise comes out as
    engine.detach()


def test_after_noise_that_failed_half_way_the_next_step_begins_anew() -> None:
    class Failing(SecureNoise):
        secure = True
        fails = False

        def add_to_each_(self, sums: Any) -> None:
            if self.fails:
                raise OSError("no randomness")
            super().add_to_each_(sums)

    noise = Failing()
    engine, optimizer = attached(small(), plan(), noise=noise)
    for fails in steps_of_which_the_third_fails(engine, optimizer, "no randomness"):
        noise.fails = fails
    assert engine.state_dict()["ledger"]["begun"] == [0, 3]
    assert (engine.ledger.steps, engine.ledger.rounds) == (4, 2)
    engine.detach()


def test_a_step_that_the_ledger_refuses_is_not_taken_for_taken(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: the step's noise isn't drawn, so the noise doesn't go on across it."""
    engine, optimizer = attached(small(), plan())
    record, full = engine.ledger.record, []

    def recorded(sampling: str = "user", *, anew: bool = False) -> None:
        if full:
            raise OSError("disk full")
        record(sampling, anew=anew)

    monkeypatch.setattr(engine.ledger, "record", recorded)
    for fails in steps_of_which_the_third_fails(engine, optimizer, "disk full"):
        full[:] = [True] * fails
    assert engine.state_dict()["ledger"]["begun"] == [0, 2]
    engine.detach()


def test_what_is_kept_between_steps_is_counted_to_the_byte() -> None:
    engine, optimizer = attached(small(), plan())
    train(engine, optimizer, 2)
    kept = engine._step._factorised._noise
    assert kept.nbytes == bytes_kept(sum(p.numel() for p in small().parameters()), torch.float32, BANDS)
    engine.detach()


def test_what_does_not_go_with_correlated_noise_is_refused_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"bands=4 with Adaptive thresholds.*Give fixed thresholds=, or plan with bands=1"):
        attached(small(), plan(), thresholds=gc.Adaptive())
    with pytest.raises(ValueError, match=r"bands=4 with HardenedNoise.*Leave noise= out, or plan with bands=1"):
        attached(small(), plan(), noise=gc.HardenedNoise())
    with pytest.raises(ValueError, match=r"no noise_multiplier yet.*calibrate"):
        attached(small(), plan(bands="auto", sigma=None))
    with pytest.raises(ValueError, match=r"bands='auto': how many.*calibrate"):
        list(gc.logical_batches(DATA, plan(bands="auto", sigma=None)))
    ranks = SimpleNamespace(rank=0, size=2, exchange=lambda told: [told, told])
    monkeypatch.setattr("groupclip.engine.attach.ranks", lambda even_one=False: ranks)
    with pytest.raises(UnsupportedOperation, match=r"bands=4 under several processes.*Train on one process, or plan with bands=1"):
        attached(small(), plan())


def test_a_step_with_correlated_noise_cannot_be_audited_alone() -> None:
    with pytest.raises(ValueError, match=r"use groupclip\.audit_run"):
        gc.audit(small(), losses, DATA[:4], "all-layer", plan())


def test_a_single_step_has_nothing_to_be_correlated_with() -> None:
    engine, optimizer = attached(small(), plan(steps=1))
    train(engine, optimizer, 1)
    assert (engine.ledger.steps, engine.ledger.rounds) == (1, 1)
    assert engine.epsilon(delta=1e-5) == plan(steps=1).spent(delta=1e-5).epsilon
    engine.detach()
