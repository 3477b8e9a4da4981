"""The one-run audit: a sound run stays below its claim, one without enough noise is found out."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import groupclip as gc
from groupclip.errors import PrivacyViolation
from groupclip.noise.sources import InsecureNoise, NoiseSource, SecureNoise

CANARIES = 200


class TooLittle:
    secure = True

    def __init__(self) -> None:
        self._noise = InsecureNoise(3)

    def add_(self, tensor: Tensor, std: float) -> None:
        self._noise.add_(tensor, std / 100)


def planned(epsilon: float = 1.0, **facts: Any) -> gc.Mechanism:
    plan = gc.Mechanism(**{"dataset_size": 40 + CANARIES, "expected_batch_size": 120, "steps": 20, **facts})
    return plan.calibrate(epsilon=epsilon, delta=1e-5)


def audited(
    noise: NoiseSource, epsilon: float = 1.0, mechanism: gc.Mechanism | list[gc.Mechanism] | None = None, **settings: object
) -> gc.RunAudit:
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(40, 30, generator=generator), torch.randint(4, (40,), generator=generator))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(30, 120), nn.Tanh(), nn.Linear(120, 4))
    mechanism = planned(epsilon) if mechanism is None else mechanism
    return gc.audit_run(
        model, lambda m, x, y: F.cross_entropy(m(x), y, reduction="none"), data, CANARIES, "layer-wise", mechanism,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1), noise=noise, delta=1e-5, **settings,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("clip", ["automatic", "abadi", "global"])
def test_a_sound_run_stays_below_its_claim(clip: str) -> None:
    """False alarm: at most 1e-6, by the theorem."""
    report = audited(SecureNoise(), clip=clip, confidence=1 - 1e-6)
    assert not report.violates
    assert report.guesses == 40
    assert "made-up canaries" in str(report)


@pytest.mark.parametrize("clip", ["automatic", "global"])
def test_a_run_with_too_little_noise_is_found_out(clip: str) -> None:
    """A hundredth of the noise: 40 guesses of 40 are right, but for a few. Missed with chance far below 1e-6."""
    report = audited(TooLittle(), clip=clip)
    assert report.violates
    assert report.right >= 36
    assert "VIOLATION" in str(report)


def test_a_large_epsilon_shows() -> None:
    """A sound run that claims little is seen to leak: the bound is above 0 and below the claim.

    At epsilon = 40 most of 40 guesses are right; 28 of 40, at which the bound is 0.2, are missed with chance below 1e-6.
    """
    report = audited(SecureNoise(), epsilon=40.0)
    assert 0.2 < report.epsilon_lower < report.epsilon_claimed


BANDED = {"expected_batch_size": 40, "adjacency": "zero-out", "bands": 4}


def test_a_run_with_correlated_noise_stays_below_its_claim() -> None:
    """False alarm: at most 1e-6, by the theorem."""
    report = audited(SecureNoise(), mechanism=planned(1.0, **BANDED), confidence=1 - 1e-6)
    assert not report.violates and report.epsilon_claimed <= 1.0


def test_a_run_with_too_little_correlated_noise_is_found_out() -> None:
    """The twin: a hundredth of the noise. Canaries that no batch draws are few: (1 - q)^5 = 0.4 % are never drawn."""
    report = audited(TooLittle(), mechanism=planned(1.0, **BANDED))
    assert report.violates and report.right >= 36


def test_an_attacker_takes_correlated_noise_apart() -> None:
    """At a large epsilon a sound run is seen to leak. Summing the releases as they are shows less: the noise of steps differs."""
    plan = planned(40.0, **BANDED)
    report = audited(SecureNoise(), mechanism=plan)
    assert 0.2 < report.epsilon_lower < report.epsilon_claimed


def test_a_budget_of_two_runs_stays_below_what_it_says(tmp_path: Path) -> None:
    """Two trainings with the same canaries, one with correlated noise. False alarm: at most 1e-6, by the theorem."""
    plans = [planned(0.7, adjacency="zero-out", steps=10), planned(0.7, **BANDED)]
    budget = gc.Budget(tmp_path / "budget.jsonl", epsilon=2.0, delta=1e-5, adjacency="zero-out")
    for plan in plans:
        budget.add(plan)
    steps: list[int] = []
    report = audited(SecureNoise(), mechanism=plans, confidence=1 - 1e-6, progress=steps.append)
    assert report.epsilon_claimed == budget.spent().epsilon and 0.7 < report.epsilon_claimed < 1.4
    assert not report.violates and steps == list(range(1, 31))


def test_a_budget_of_two_runs_with_too_little_noise_is_found_out() -> None:
    plans = [planned(0.7, adjacency="zero-out", steps=10), planned(0.7, **BANDED)]
    assert audited(TooLittle(), mechanism=plans).violates


def test_several_runs_show_more_than_one_claims() -> None:
    """The twin of a budget that forgets runs: 60 of one step each show more than the one that it would count.

    Together they are one Gaussian with mu = 2.07, of which 39.6 of 40 guesses are right on average; 34 or fewer, at which the bound
    isn't above 1, are so with chance below 1e-5.
    """
    one = planned(1.0, adjacency="zero-out", sampling="full-batch", expected_batch_size=240, steps=1)
    together = audited(SecureNoise(), mechanism=[one] * 60)
    assert one.epsilon(delta=1e-5) < together.epsilon_lower < together.epsilon_claimed


def test_plans_of_other_neighbours_are_not_audited_together() -> None:
    with pytest.raises(ValueError, match="one adjacency"):
        audited(SecureNoise(), mechanism=[planned(1.0), planned(1.0, adjacency="zero-out")])
    with pytest.raises(ValueError, match="one adjacency"):
        audited(SecureNoise(), mechanism=[])


def test_coins_that_were_drawn_otherwise_are_refused() -> None:
    game = gc.CanaryAudit(canaries=60)
    half = torch.arange(60) % 2 == 0
    with pytest.raises(PrivacyViolation, match="not drawn by this audit's coins"):
        game.judge(half, half.double(), epsilon=1.0)
    other = gc.CanaryAudit(canaries=60).coins()
    with pytest.raises(PrivacyViolation, match="not drawn by this audit's coins"):
        game.judge(other, other.double(), epsilon=1.0)
    coins = game.coins()
    coins[0] = ~coins[0]  # a canary that was counted otherwise than it was drawn
    with pytest.raises(PrivacyViolation, match="not drawn by this audit's coins"):
        game.judge(coins, coins.double(), epsilon=1.0)


def test_a_second_verdict_after_looking_is_refused() -> None:
    """The best of many attacks on one run: with pure chance, the bound would be beaten."""
    game = gc.CanaryAudit(canaries=60)
    coins = game.coins()
    with pytest.raises(ValueError, match="one finite score"):
        game.judge(coins, torch.zeros(3), epsilon=1.0)  # no verdict yet
    game.judge(coins, torch.randn(60), epsilon=1.0)
    with pytest.raises(PrivacyViolation, match="the best of several verdicts"):
        game.judge(coins, torch.randn(60), epsilon=1.0)
    with pytest.raises(PrivacyViolation, match="the best of several verdicts"):  # nor with another number of guesses
        gc.CanaryAudit(canaries=60, guesses=30).judge(coins, torch.randn(60), epsilon=1.0)


def test_a_game_may_be_kept_until_it_is_judged() -> None:
    game = gc.CanaryAudit(canaries=60)
    coins = game.coins()
    again = pickle.loads(pickle.dumps(game))
    assert again == game and again.judge(coins, coins.double(), epsilon=1.0).right == 12


def test_too_few_guesses_are_told_before_the_run(caplog: pytest.LogCaptureFixture) -> None:
    few = gc.CanaryAudit(canaries=20)
    few.warn_if_idle(8.0)
    (text,) = [record.getMessage() for record in caplog.records]
    assert "4 guesses can show epsilon" in text and "take" in text and "canaries or more" in text
    caplog.clear()
    gc.CanaryAudit(canaries=20_000).warn_if_idle(1.0)
    assert not caplog.records
    coins = few.coins()
    few.judge(coins, coins.double(), epsilon=8.0)
    assert any("can't find a violation" in record.getMessage() for record in caplog.records)


def test_the_verdict_says_when_nothing_could_be_shown() -> None:
    game = gc.CanaryAudit(canaries=20)
    coins = game.coins()
    report = game.judge(coins, coins.double(), epsilon=8.0)
    assert report.right == report.guesses == 4
    assert "No violation could have been found" in str(report)


def test_the_verdict_says_when_delta_forbids_such_confidence() -> None:
    """With probability delta all may leak, so a bound that is wrong more rarely than that can't exist."""
    game = gc.CanaryAudit(canaries=100, guesses=50, delta=1e-3, confidence=0.9999)
    coins = game.coins()
    report = game.judge(coins, coins.double(), epsilon=8.0)
    assert report.right == 50 and report.epsilon_lower == report.epsilon_ceiling == 0
    assert "a confidence of 0.998 or more shows nothing at all" in str(report)


def test_coins_are_fair_and_fresh() -> None:
    game = gc.CanaryAudit(canaries=100_000)
    first, second = game.coins(), game.coins()
    # six standard deviations: 2e-9 each
    assert abs(int(first.sum()) - 50_000) < 6 * 158
    assert abs(int((first ^ second).sum()) - 50_000) < 6 * 158


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"canaries": 10, "guesses": 11}, "guesses=11"),
        ({"canaries": 10, "confidence": 1.0}, "confidence"),
        ({"canaries": 10, "delta": 2.0}, "delta"),
        ({"canaries": 1}, "canaries"),
    ],
)
def test_wrong_games(facts: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gc.CanaryAudit(**facts)  # type: ignore[arg-type]


def test_scores_must_be_finite() -> None:
    game = gc.CanaryAudit(canaries=4)
    with pytest.raises(ValueError, match="one finite score"):
        game.judge(game.coins(), torch.tensor([1.0, 2.0, float("nan"), 0.0]), epsilon=1.0)
    with pytest.raises(ValueError, match="one finite score"):
        game.judge(game.coins(), torch.zeros(5), epsilon=1.0)


def test_users_and_wrong_sizes_are_refused() -> None:
    model, data = nn.Linear(2, 2), TensorDataset(torch.zeros(5, 2), torch.zeros(5, dtype=torch.long))

    def sgd(p: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(p, lr=0.1)

    losses = lambda m, x, y: F.cross_entropy(m(x), y, reduction="none")  # noqa: E731
    users = gc.Mechanism(dataset_size=15, expected_batch_size=5, steps=1, noise_multiplier=1.0, unit="user")
    with pytest.raises(ValueError, match="plan of users"):
        gc.audit_run(model, losses, data, 10, "layer-wise", users, sgd)
    wrong = gc.Mechanism(dataset_size=5, expected_batch_size=5, steps=1, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="15"):
        gc.audit_run(model, losses, data, 10, "layer-wise", wrong, sgd)
    assert all(type(p) is nn.Parameter for p in model.parameters())
