"""The one-run audit: a sound run stays below its claim, one without enough noise is found out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import groupclip as gc
from groupclip.noise.sources import InsecureNoise, NoiseSource, SecureNoise

CANARIES = 200


class TooLittle:
    secure = True

    def __init__(self) -> None:
        self._noise = InsecureNoise(3)

    def add_(self, tensor: Tensor, std: float) -> None:
        self._noise.add_(tensor, std / 100)


def audited(noise: NoiseSource, epsilon: float = 1.0, **settings: object) -> gc.RunAudit:
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(40, 30, generator=generator), torch.randint(4, (40,), generator=generator))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(30, 120), nn.Tanh(), nn.Linear(120, 4))
    mechanism = gc.Mechanism(dataset_size=40 + CANARIES, expected_batch_size=120, steps=20)
    mechanism = mechanism.calibrate(epsilon=epsilon, delta=1e-5)
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
