"""Epsilon of several releases together, against convolutions of the dominating pairs that are made here from their definition."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats
from scipy.signal import fftconvolve

import groupclip as gc
from groupclip.privacy.composition import composed_epsilon
from groupclip.privacy.sampled_step import Step

GRID = 1e-3
Part = tuple[float, float, int]  # q, sigma, steps


def losses(q: float, sigma: float, adding: bool) -> dict[int, float]:
    """Probability of each privacy loss of one step, in units of the grid, told only up to cells of the output, rounded down.

    Telling less of the output and rounding losses down only lowers delta: what comes out is a bound from below.
    """
    xs = np.linspace(-12 * sigma - 1, 12 * sigma + 2, 60_001)

    def masses(shift: float) -> np.ndarray:
        cdf, upper = stats.norm(shift, sigma).cdf(xs), stats.norm(shift, sigma).sf(xs)
        return np.where(xs[1:] < shift, np.diff(cdf), -np.diff(upper))

    still, moved = masses(0.0), (1 - q) * masses(0.0) + q * masses(1.0)
    over, under = (still, moved) if adding else (moved, still)
    there = (over > 1e-300) & (under > 1e-300)
    floors = np.floor(np.log(over[there] / under[there]) / GRID).astype(int)
    found: dict[int, float] = {}
    for loss, mass in zip(floors.tolist(), over[there].tolist(), strict=True):
        found[loss] = found.get(loss, 0.0) + mass
    return found


def dense(found: dict[int, float]) -> tuple[int, np.ndarray]:
    low, high = min(found), max(found)
    masses = np.zeros(high - low + 1)
    for loss, mass in found.items():
        masses[loss - low] = mass
    return low, masses


def convolved(one: tuple[int, np.ndarray], other: tuple[int, np.ndarray]) -> tuple[int, np.ndarray]:
    masses = np.maximum(fftconvolve(one[1], other[1]), 0.0)
    low = one[0] + other[0]
    kept = np.flatnonzero(masses > 1e-18)  # what is cut off is missing from delta: from below
    return low + int(kept[0]), masses[kept[0] : kept[-1] + 1]


def losses_below(parts: Sequence[Part], given: Sequence[float]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Privacy losses, rounded down, and their masses: of all steps, and of randomised responses of pure ``given`` epsilons."""
    found = []
    for adding in (False, True):
        total = (0, np.ones(1))
        for q, sigma, steps in parts:
            single = dense(losses(q, sigma, adding))
            for _ in range(steps):
                total = convolved(total, single)
        for pure in given:
            says = math.exp(pure) / (1 + math.exp(pure))
            total = convolved(total, dense({math.floor(pure / GRID): says, math.floor(-pure / GRID): 1 - says}))
        found.append(((total[0] + np.arange(len(total[1]))) * GRID, total[1]))
    return found


def epsilon_below(parts: Sequence[Part], given: Sequence[float], delta: float) -> float:
    """Return the epsilon at which delta, from below, is ``delta``: in both directions, the larger."""
    low, high, laws = 0.0, 60.0, losses_below(parts, given)
    for _ in range(24):
        middle = (low + high) / 2
        below = max(float((masses * -np.expm1(np.minimum(middle - at, 0.0))).sum()) for at, masses in laws)
        low, high = (middle, high) if below > delta else (low, middle)
    return low


def steps_of(parts: Sequence[Part]) -> list[tuple[Step, int]]:
    return [(Step(sampling="poisson", adjacency="add-or-remove-one", rate=q, sigma=s), n) for q, s, n in parts]


CASES = [
    ([(0.2, 1.0, 4), (0.5, 2.0, 3)], [], 1e-5),
    ([(0.05, 0.8, 5), (1.0, 4.0, 2)], [], 1e-6),
    ([(0.3, 1.5, 3)], [0.7, 0.2], 1e-4),
    ([(0.1, 0.7, 2), (0.2, 0.9, 2), (0.9, 3.0, 2)], [0.4], 1e-5),
]


@pytest.mark.parametrize(("parts", "given", "delta"), CASES)
def test_several_plans_are_one_figure_as_convolved_here(parts, given, delta) -> None:
    """At most 2 % above a bound from below. Twins: a step too few, one plan alone, and more noise lie below the truth."""
    truth = epsilon_below(parts, given, delta)
    found, who = composed_epsilon(steps_of(parts), [], [(pure, 0.0) for pure in given], delta)
    assert truth <= found <= 1.02 * truth and who == "PLD"
    (q, sigma, steps), *others = parts
    twins = [
        [(q, sigma, steps - 1), *others],
        [(q, 1.1 * sigma, steps), *others],
        [(0.85 * q, sigma, steps), *others],
    ]
    for twin in twins:
        assert composed_epsilon(steps_of(twin), [], [(pure, 0.0) for pure in given], delta)[0] < truth
    if others:
        assert composed_epsilon(steps_of(parts[:1]), [], [], delta)[0] < truth


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_order_and_division_change_nothing(order) -> None:
    parts = steps_of([(0.2, 1.0, 4), (0.5, 2.0, 3), (0.2, 1.0, 2)])
    whole = composed_epsilon([parts[0], parts[1], parts[2]], [], [], 1e-5)
    assert composed_epsilon([parts[n] for n in order], [], [], 1e-5)[0] == pytest.approx(whole[0], rel=1e-9)
    together = [(parts[0][0], 6), parts[1]]
    assert composed_epsilon(together, [], [], 1e-5)[0] == pytest.approx(whole[0], rel=1e-9)


def test_one_model_by_two_engines_is_the_figure_of_both(tmp_path) -> None:
    """Two engines on the parts of one model: the budget's figure, from its file, as convolved here."""
    first = gc.Mechanism(dataset_size=100, expected_batch_size=20, steps=4, noise_multiplier=1.0)
    second = gc.Mechanism(dataset_size=100, expected_batch_size=50, steps=3, noise_multiplier=2.0)
    budget = gc.Budget(tmp_path / "b", epsilon=20.0, delta=1e-5)
    budget.add(first)
    budget.add(second)
    truth = epsilon_below([(0.2, 1.0, 4), (0.5, 2.0, 3)], [], 1e-5)
    assert truth <= gc.Budget(tmp_path / "b").spent().epsilon <= 1.02 * truth
