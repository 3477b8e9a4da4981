"""The bound on right guesses: against the best that ANY (epsilon, delta)-DP run allows, found by linear programming.

Nothing here is drawn at random but in the last test, which says how rarely it fails.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.stats import binom

import groupclip as gc
from groupclip.auditing.guesses import enough_canaries, guessed_share, guesses_epsilon, guesses_p_value

GAMES = [(1, 1), (5, 5), (10, 4), (20, 20), (60, 12)]
BUDGETS = [(0.0, 1e-4), (0.5, 1e-2), (1.0, 1e-6), (1.0, 0.05), (3.0, 1e-3)]


def most_revealing(m: int, r: int, v: int, epsilon: float, delta: float) -> np.ndarray:
    """The law of the number of right guesses, of all (epsilon, delta)-DP runs, that makes v or more the likeliest.

    Relabelled at random, a run's outcomes with c right guesses are equally likely. Variables: p(0..r), and what
    P(outcomes) - e^epsilon Q(outcomes) is above zero, summed over outcomes that have the flipped coin's canary right with
    c right guesses, or wrong. No step of the library's proof is used beyond this symmetry.
    """
    size = 3 * (r + 1)
    rows, grown = [], math.exp(epsilon)
    for c in range(1, r + 1):
        row = np.zeros(size)
        row[c], row[c - 1], row[r + 1 + c] = c / m, -grown * (r - c + 1) / m, -1
        rows.append(row)
    for c in range(r):
        row = np.zeros(size)
        row[c], row[c + 1], row[2 * (r + 1) + c] = (r - c) / m, -grown * (c + 1) / m, -1
        rows.append(row)
    spent = np.zeros(size)
    spent[r + 1 :] = 1
    bounds = [0.0] * len(rows) + [delta]
    whole = (np.arange(size) <= r).astype(float)[None, :]
    found = linprog(
        -((np.arange(size) >= v) & (np.arange(size) <= r)).astype(float),
        A_ub=np.array([*rows, spent]), b_ub=bounds, A_eq=whole, b_eq=[1.0], bounds=[(0, None)] * size, method="highs",
    )  # fmt: skip
    assert found.status == 0
    return found.x[: r + 1]


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
@pytest.mark.parametrize(("m", "r"), GAMES)
def test_no_run_has_more_right_guesses(m: int, r: int, epsilon: float, delta: float) -> None:
    attained = False
    for v in range(r + 1):
        best = float(most_revealing(m, r, v, epsilon, delta)[v:].sum())
        bound = guesses_p_value(m, r, v, epsilon, delta)
        assert best <= bound + 1e-6
        attained = attained or (v > 0 and bound < 0.99 and best > bound - 1e-6)
        # twins that must be rejected: without the second term, or with half of it
        if bound < 0.9 and bound - guesses_p_value(m, r, v, epsilon, 0.0) > 1e-4:
            assert best > guesses_p_value(m, r, v, epsilon, 0.0) + 1e-5
    assert attained or epsilon == 3.0  # the bound can't be improved


def test_the_twin_with_half_of_delta_is_rejected() -> None:
    best = most_revealing(20, 20, 16, 0.5, 0.01)[16:].sum()
    assert best > guesses_p_value(20, 20, 16, 0.5, 0.005) + 1e-3
    assert best <= guesses_p_value(20, 20, 16, 0.5, 0.01) + 1e-9


@pytest.mark.parametrize(
    ("m", "r", "v", "epsilon", "delta"), [(5, 5, 4, 1.0, 0.05), (5, 3, 3, 0.5, 0.01), (6, 6, 2, 0.0, 0.02)]
)
def test_the_worst_run_is_one(m: int, r: int, v: int, epsilon: float, delta: float) -> None:
    """Written out, outcome by outcome and coin by coin, it is (epsilon, delta)-DP and attains the bound."""
    law = most_revealing(m, r, v, epsilon, delta)
    outcomes = [t for t in itertools.product((-1, 0, 1), repeat=m) if sum(map(abs, t)) == r]

    def released(coins: tuple[int, ...]) -> np.ndarray:
        right = [sum(a == b for a, b in zip(coins, t, strict=True)) for t in outcomes]
        return np.array([law[c] / math.comb(m, r) / math.comb(r, c) for c in right])

    for coins in itertools.product((-1, 1), repeat=m):
        here = released(coins)
        assert here.sum() == pytest.approx(1)
        for flipped in range(m):
            there = released(tuple(-c if i == flipped else c for i, c in enumerate(coins)))
            assert np.maximum(here - math.exp(epsilon) * there, 0).sum() <= delta + 1e-9
    assert law[v:].sum() == pytest.approx(guesses_p_value(m, r, v, epsilon, delta), rel=1e-6)


def published(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Corollary 5.4 of Steinke, Nasr and Jagielski (2023)."""
    law = binom.pmf(np.arange(r + 1), r, 1 / (1 + math.exp(-epsilon)))
    return law[v:].sum() + 2 * m * delta * max(law[v - i : v].sum() / i for i in range(1, v + 1))


@pytest.mark.parametrize(("m", "r"), [(60, 12), (100, 20), (300, 60), (1000, 1000)])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0, 6.0])
def test_the_published_bound_is_larger_where_a_bound_is_of_use(m: int, r: int, epsilon: float) -> None:
    for v in range(1, r + 1, max(1, r // 100)):
        ours, theirs = guesses_p_value(m, r, v, epsilon, 1e-5), published(m, r, v, epsilon, 1e-5)
        first = guesses_p_value(m, r, v, epsilon, 0.0)
        if theirs < 0.5:
            assert ours <= theirs * (1 + 1e-9)
            # second terms, where these can be told from the rounding of the first
            assert theirs - first < 1e-9 * first or 1.4 * (ours - first) < theirs - first


def test_the_formula_in_exact_fractions() -> None:
    m, r, odds, delta = 30, 12, Fraction(9, 4), Fraction(1, 1000)
    law = [math.comb(r, c) * odds**c / (1 + odds) ** r for c in range(r + 1)]
    for v in range(1, r + 1):
        beta = sum(law[v:])
        bound = min(Fraction(1), beta + m * delta * beta * (1 - beta) / (v * law[v]))
        assert guesses_p_value(m, r, v, math.log(odds), float(delta)) == pytest.approx(float(bound), rel=1e-12)
        # what the last step of the proof says: no other j is worse
        others = [sum(law[max(j, v) :]) - beta * sum(law[j:]) for j in range(1, r + 1)]
        assert max(k / (j * law[j]) for j, k in enumerate(others, 1)) == beta * (1 - beta) / (v * law[v])


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 3.0, 30.0, 49.0])
@pytest.mark.parametrize("r", [1, 10, 5000])
def test_extremes_are_numbers_and_fall_with_right_guesses(r: int, epsilon: float) -> None:
    values = [guesses_p_value(r, r, v, epsilon, 1e-5) for v in range(0, r + 1, max(1, r // 50))]
    assert all(0 <= value <= 1 for value in values)
    assert values[0] == 1.0
    assert all(b <= a * (1 + 1e-9) for a, b in itertools.pairwise(values))


@pytest.mark.parametrize("guesses", [40, 200])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 0.0), (4.0, 0.0), (1.0, 1e-3), (2.0, 1e-5)])
def test_randomised_response_exceeds_its_epsilon_as_rarely_as_is_said(
    guesses: int, epsilon: float, delta: float
) -> None:
    """Each canary answered by randomised response, and with probability delta outright: (epsilon, delta)-DP. Summed exactly."""
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
    """With probability delta EVERY coin is published: (0, delta)-DP, and all guesses are right with that probability."""
    canaries, delta = 1000, 1e-4
    assert guesses_p_value(canaries, canaries, canaries, 0.0, delta) == pytest.approx(delta, rel=1e-12)
    assert guesses_p_value(canaries, canaries, canaries, 0.0, 0.0) < delta  # without the term it would be a false alarm


@pytest.mark.parametrize(("guesses", "ceiling"), [(100, 3.5), (1000, 5.8), (5000, 7.4)])
def test_all_right_gives_the_ceiling(guesses: int, ceiling: float) -> None:
    found = guesses_epsilon(guesses, guesses, guesses, 0.0, 0.95)
    assert found == pytest.approx(-math.log(0.05 ** (-1 / guesses) - 1), abs=1e-6)
    assert found == pytest.approx(ceiling, abs=0.05)


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_enough_canaries_are_enough(epsilon: float) -> None:
    m = enough_canaries(epsilon, 1e-5, 0.99, 5000)
    r = guessed_share(m)
    assert guesses_epsilon(m, r, r, 1e-5, 0.99) > epsilon
    assert guesses_epsilon(m - 5, r - 1, r - 1, 1e-5, 0.99) <= epsilon
    assert enough_canaries(20.0, 1e-5, 0.99, 700) == 700


def test_a_simulated_run_of_known_epsilon() -> None:
    """The whole game, coins and scores and all, 400 times at 90 %.

    Sound: every answer of 60 is by randomised response at epsilon = 1, and with probability delta all coins are published.
    False alarms come with probability 0.1 at most each, so more than 80 of 400 with probability below 1e-9. Its twin has
    epsilon = 2.5, which is said to be above 1 with probability 0.99 each (the sum below), so fewer than 350 times with
    probability below 1e-20.
    """
    delta, generator = 1e-3, torch.Generator().manual_seed(0)
    game = gc.CanaryAudit(canaries=60, guesses=60, delta=delta, confidence=0.9)

    def violations(epsilon: float) -> int:
        found = 0
        for _ in range(400):
            coins = game.coins()
            honest = torch.rand(60, generator=generator) < 1 / (1 + math.exp(-epsilon))
            if float(torch.rand((), generator=generator)) < delta:
                honest[:] = True
            answers = torch.where(honest, coins, ~coins)
            # the game has half of the guesses "in": only the sure ones among 60 answers, so guess on all of them
            found += guesses_epsilon(60, 60, int((answers == coins).sum()), delta, 0.9) > 1.0
        return found

    assert violations(1.0) <= 80
    assert violations(2.5) >= 350
    loud = binom.pmf(np.arange(61), 60, 1 / (1 + math.exp(-2.5)))
    assert loud[[guesses_epsilon(60, 60, v, delta, 0.9) > 1.0 for v in range(61)]].sum() > 0.99
