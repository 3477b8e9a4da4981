"""The bounds' confidence, summed exactly over every outcome: no simulation, so no chance of a false alarm."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from groupclip.auditing.statistics import (
    epsilon_at_least,
    guesses_epsilon,
    guesses_p_value,
    most_likely_rate,
    mu_at_least,
)

RATES = (0.001, 0.02, 0.3085, 0.5, 0.9)


@pytest.mark.parametrize("doubt", [0.3, 0.01])
@pytest.mark.parametrize("rate", RATES)
def test_the_limit_is_too_small_as_rarely_as_it_says(rate: float, doubt: float) -> None:
    trials = 200
    limits = np.array([most_likely_rate(k, trials, doubt) for k in range(trials + 1)])
    too_small = float(binom.pmf(np.arange(trials + 1), trials, rate)[limits < rate].sum())
    assert too_small <= doubt * (1 + 1e-9)
    # the twin: the observed rate itself, or the limit of a tenth of the doubt's confidence, would be wrong far more often
    observed = np.arange(trials + 1) / trials
    assert binom.pmf(np.arange(trials + 1), trials, rate)[observed < rate].sum() > doubt or rate == 0.001


@pytest.mark.parametrize("mu", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("cut", [0.5, 0.0])
def test_mu_of_a_gaussian_is_exceeded_as_rarely_as_it_says(mu: float, cut: float) -> None:
    """All (false alarms, misses) of the rule "above cut * mu", for N(0, 1) against N(mu, 1)."""
    trials, confidence = 60, 0.95
    weights = _weights(trials, norm.sf(cut * mu), norm.cdf(cut * mu - mu))
    bounds = np.array([[mu_at_least(a, b, trials, confidence) for b in range(trials + 1)] for a in range(trials + 1)])
    assert weights[bounds > mu].sum() <= 1 - confidence
    # must be found: four times the claim, by most audits
    loud = _weights(trials, norm.sf(2.0), norm.cdf(-2.0))
    assert loud[bounds > 1.0].sum() > 0.99


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (1.0, 1e-2), (3.0, 1e-5)])
def test_epsilon_of_randomised_response_is_exceeded_as_rarely_as_it_says(epsilon: float, delta: float) -> None:
    trials, confidence = 60, 0.95
    error = (1 - delta) / (1 + math.exp(epsilon))
    weights = _weights(trials, error, error)
    bounds = np.array(
        [[epsilon_at_least(a, b, trials, delta, confidence) for b in range(trials + 1)] for a in range(trials + 1)]
    )
    assert weights[bounds > epsilon].sum() <= 1 - confidence
    loud = _weights(200, 0.01, 0.01)
    found = np.array([[epsilon_at_least(a, b, 200, delta, confidence) for b in range(12)] for a in range(12)])
    assert loud[:12, :12][found > 1.0].sum() > 0.9


def _weights(trials: int, false_alarm: float, miss: float) -> np.ndarray:
    counts = np.arange(trials + 1)
    return np.outer(binom.pmf(counts, trials, false_alarm), binom.pmf(counts, trials, miss))


@pytest.mark.parametrize("guesses", [40, 200])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 0.0), (4.0, 0.0), (1.0, 1e-3), (2.0, 1e-5)])
def test_guesses_exceed_the_true_epsilon_as_rarely_as_they_say(guesses: int, epsilon: float, delta: float) -> None:
    """Each canary answered by randomised response, and with probability delta outright: (epsilon, delta)-DP."""
    right = np.arange(guesses + 1)
    chance = delta + (1 - delta) / (1 + math.exp(-epsilon))
    law = binom.pmf(right, guesses, chance)
    bounds = np.array([guesses_epsilon(200, guesses, int(v), delta, 0.95) for v in right])
    assert law[bounds > epsilon].sum() <= 0.05
    assert (np.diff(bounds) >= 0).all()
    # must be found: a run that is far less private than epsilon = 0.5
    loud = binom.pmf(right, guesses, 1 / (1 + math.exp(-4.0)))
    assert loud[bounds > 0.5].sum() > 0.99


def test_guesses_that_all_leak_at_once_are_covered_by_delta() -> None:
    """With probability delta EVERY membership is published: (0, delta)-DP, and the case that the theorem's second term is for."""
    canaries, delta, doubt = 1000, 1e-4, 0.05
    wrong = guesses_p_value(canaries, canaries, canaries, 0.0, delta)
    assert wrong >= delta  # such a run has all guesses right with probability delta, at epsilon = 0
    assert guesses_epsilon(canaries, canaries, canaries, delta, doubt) >= 0
    assert guesses_p_value(canaries, canaries, canaries, 0.0, 0.0) < delta  # without the term it would be a false alarm


@pytest.mark.parametrize(("guesses", "ceiling"), [(100, 3.5), (1000, 5.8), (5000, 7.4)])
def test_all_right_gives_the_ceiling(guesses: int, ceiling: float) -> None:
    found = guesses_epsilon(guesses, guesses, guesses, 0.0, 0.95)
    assert found == pytest.approx(-math.log(0.05 ** (-1 / guesses) - 1), abs=1e-6)
    assert found == pytest.approx(ceiling, abs=0.05)


def test_the_theorem_term_by_term() -> None:
    """Against the sum as the theorem has it, in plain Python."""
    m, r, v, epsilon, delta = 30, 12, 9, 0.7, 0.01
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    pmf = [math.comb(r, w) * chance**w * (1 - chance) ** (r - w) for w in range(r + 1)]
    slope = max(sum(pmf[max(0, v - i) : v]) * 2 / i for i in range(1, m + 1))
    assert guesses_p_value(m, r, v, epsilon, delta) == pytest.approx(sum(pmf[v:]) + m * delta * slope, rel=1e-9)
