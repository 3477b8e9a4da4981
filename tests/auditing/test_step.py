"""The audit of a real step: sound engines pass with a bound worth having, broken ones are caught.

A sound engine exceeds its claim with probability 1 - confidence at most, by the exact limits of the statistics: 1e-6 here.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
from groupclip.auditing.statistics import enough_trials
from groupclip.autograd import clipped
from groupclip.clipping.functions import ClipFunction, bounded_factors
from groupclip.noise.sources import InsecureNoise

SURE = 1 - 1e-6


class Scaled:
    """Noise of a fixed seed, times a factor: 1 is sound."""

    secure = True

    def __init__(self, factor: float) -> None:
        self._factor, self._noise = factor, InsecureNoise(7)

    def add_(self, tensor: Tensor, std: float) -> None:
        self._noise.add_(tensor, std * self._factor)


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def audited(trials: int, factor: float = 1.0, sigma: float = 1.0, **settings: object) -> gc.StepAudit:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / 2)
    x, y = torch.randn(3, 6, generator=generator), torch.tensor([0, 1, 2])
    facts = {"adjacency": settings.pop("adjacency", "add-or-remove-one")}
    mechanism = gc.Mechanism(dataset_size=1000, expected_batch_size=50, steps=10, noise_multiplier=sigma, **facts)  # type: ignore[arg-type]
    given = {"confidence": SURE, "noise": Scaled(factor), **settings}
    return gc.audit(model, losses, (x, y), "layer-wise", mechanism, trials=trials, **given)  # type: ignore[arg-type]


def test_progress_is_told_and_nothing_warns_of_the_audits_own_batches(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []
    audited(12, progress=seen.append)
    assert seen == list(range(1, 13))
    assert caplog.messages == []


def test_a_batch_of_ones_own_still_warns_after_an_audit(caplog: pytest.LogCaptureFixture) -> None:
    audited(10)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mechanism = gc.Mechanism(dataset_size=100, expected_batch_size=10, steps=2, noise_multiplier=1.0)
    engine = gc.attach(model, optimizer, "all-layer", mechanism)
    engine.backward(model(torch.randn(4, 3)).square().sum(1))
    optimizer.step()
    engine.detach()
    assert "on a batch that groupclip didn't draw" in caplog.text


@pytest.mark.one_in(3)
@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "zero-out", "replace-one"])
def test_a_sound_step_is_bounded_from_both_sides(adjacency: str) -> None:
    report = audited(500, adjacency=adjacency)
    assert not report.violates
    assert report.mu_claimed == (2.0 if adjacency == "replace-one" else 1.0)
    assert report.mu_of_canary == pytest.approx(report.mu_claimed, rel=1e-3)
    assert 0.25 * report.mu_claimed <= report.mu_lower <= report.mu_claimed
    assert 0 < report.epsilon_any_noise <= report.epsilon_lower <= report.epsilon_claimed
    assert report.run_epsilon_lower < report.run_epsilon_claimed
    assert report.mu_lower < report.mu_ceiling
    assert "No violation found" in str(report)


@pytest.mark.slow
@pytest.mark.parametrize(("trials", "share"), [(1000, 0.6), (10_000, 0.85)])
def test_the_bound_is_worth_having(trials: int, share: float) -> None:
    """At 99.9 %: 0.73 is to be expected at 1,000 trials, 0.92 at 10,000; noise of a fixed seed, so no chance of a false alarm."""
    report = audited(trials, confidence=0.999)
    assert share * report.mu_claimed <= report.mu_lower <= report.mu_claimed


@pytest.mark.one_in(2)
@pytest.mark.parametrize("factor", [0.5, 2**-0.5])
def test_too_little_noise_is_caught(factor: float) -> None:
    """sqrt(2) too little is an error that no audit of a whole run sees.

    As many trials as miss it with probability 1e-6 at most (187 and 867); a sound step is accused with probability 1e-2 at
    most (the sound twins above ask for 1e-6).
    """
    trials = enough_trials(2.0, 1 / factor, 0.99, 10_000, sure=1 - 1e-6)
    assert trials < 2_000
    report = audited(trials, factor, sigma=0.5, confidence=0.99)
    assert report.violates
    assert report.epsilon_lower > report.epsilon_claimed
    assert "VIOLATION" in str(report)


def test_a_group_that_is_not_clipped_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(10**9))

    def every_second(clip: ClipFunction, norms: Tensor, threshold: float, dtype: torch.dtype) -> Tensor:
        return torch.ones_like(norms) if next(calls) % 2 else bounded_factors(clip, norms, threshold, dtype)

    monkeypatch.setattr(clipped, "bounded_factors", every_second)
    report = audited(100)
    assert report.violates
    assert report.mu_of_canary > 100


def test_a_batch_mean_that_is_clipped_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors from the norm of the mean: the canary is not bounded by itself."""

    def of_the_mean(clip: ClipFunction, norms: Tensor, threshold: float, dtype: torch.dtype) -> Tensor:
        return bounded_factors(clip, norms.mean().expand_as(norms), threshold, dtype)

    monkeypatch.setattr(clipped, "bounded_factors", of_the_mean)
    assert audited(200).violates


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "settings",
    [{"clip": "abadi"}, {"clip": "flat-normalised"}, {"clip": "global"}, {"allocation": "dimension"}, {"thresholds": [0.1, 3.0]}],
    ids=str,
)  # fmt: skip
def test_every_clip_function_and_allocation(settings: dict[str, object]) -> None:
    report = audited(100, **settings)
    assert not report.violates
    assert report.mu_of_canary <= report.mu_claimed * (1 + 1e-5)
    if settings.get("clip") != "global":  # which drops what is above: only one group can be at its threshold
        assert report.mu_of_canary > 0.999 * report.mu_claimed


def test_hardened_noise_and_insecure_noise() -> None:
    assert not audited(50, noise=gc.HardenedNoise()).violates
    assert "reproducible from a seed" in str(audited(10, noise=InsecureNoise(1)))


def test_the_model_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    before = {name: p.clone() for name, p in model.named_parameters()}
    mechanism = gc.Mechanism(dataset_size=10, expected_batch_size=5, steps=1, noise_multiplier=1.0)
    gc.audit(model, losses, (torch.ones(2, 2), torch.tensor([0, 1])), "layer-wise", mechanism, trials=10)
    assert all(type(p) is nn.Parameter and p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trials": 3}, "trials"),
        ({"confidence": 1.0}, "confidence"),
        ({"thresholds": gc.Adaptive()}, "Adaptive thresholds move"),
    ],
)
def test_what_cannot_be_audited_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audited(**{"trials": 10, **settings})  # type: ignore[arg-type]


def test_a_canary_that_does_nothing_is_refused() -> None:
    model = nn.Linear(2, 2, bias=False)
    mechanism = gc.Mechanism(dataset_size=10, expected_batch_size=5, steps=1, noise_multiplier=1.0)
    with pytest.raises(gc.GroupClipError, match="no gradient in any group"):
        gc.audit(
            model, losses, (torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([0, 1])), "layer-wise", mechanism, trials=10
        )  # fmt: skip
    with pytest.raises(ValueError, match="at least 2"):
        gc.audit(model, losses, (torch.ones(1, 2), torch.tensor([0])), "layer-wise", mechanism, trials=10)
