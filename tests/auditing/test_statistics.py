"""The bounds' confidence, summed exactly over every outcome: no simulation, so no chance of a false alarm."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from groupclip.auditing.statistics import (
    enough_trials,
    epsilon_at_least,
    most_likely_rate,
    mu_at_least,
    noticed_factor,
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


@pytest.mark.parametrize("factor", [2.0, 2**0.5])
@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
def test_the_power_is_what_it_says(mu: float, factor: float) -> None:
    """Exactly: all pairs of counts, under noise that is too small by the factor, and under sound noise."""
    trials = enough_trials(mu, factor, 0.99, 10_000)
    assert noticed_factor(mu, trials, 0.99) <= factor < noticed_factor(mu, trials * 9 // 10, 0.99)
    counts = np.arange(trials + 1)
    limits = -norm.ppf([most_likely_rate(int(k), trials, 0.005) for k in counts])
    found = limits[:, None] + limits[None, :] > mu
    assert _weights(trials, *[norm.cdf(-factor * mu / 2)] * 2)[found].sum() >= 0.95
    assert _weights(trials, *[norm.cdf(-mu / 2)] * 2)[found].sum() <= 0.01
    # the twin: a third of the trials would miss it more often than that
    few = _weights(trials // 3, *[norm.cdf(-factor * mu / 2)] * 2)
    limits = -norm.ppf([most_likely_rate(int(k), trials // 3, 0.005) for k in range(trials // 3 + 1)])
    assert few[limits[:, None] + limits[None, :] > mu].sum() < 0.95


def test_too_few_trials_have_no_power() -> None:
    assert noticed_factor(5.0, 100, 0.99) == math.inf
    assert enough_trials(0.001, 2.0, 0.99, 5_000) == 5_000
