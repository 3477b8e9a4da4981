"""Epsilon of several releases on one data set: steps of several plans, searches, and guarantees that others computed.

What has a privacy loss distribution is composed by it, exactly up to the grid. What has Renyi divergences alone (a search, batches
without replacement) is composed by them. Where both are there, delta is halved between the two and their epsilons add up, or all
is composed by Renyi divergences. Each is an upper bound, so the smaller is one.
"""

import math
from collections.abc import Sequence

from groupclip.privacy import accounting, distributions
from groupclip.privacy.sampled_step import Step

Steps = tuple[Step, int]
Search = tuple[Step, int, float, float]  # steps of each run; mean and shape of the number of runs
Given = tuple[float, float]  # (epsilon, delta)
_FIRST, _MOST = 4_000, 128_000  # points of a composed distribution
_SETTLED = 0.005


def composed_epsilon(
    parts: Sequence[Steps], searches: Sequence[Search], given: Sequence[Given], delta: float
) -> tuple[float, str]:
    """Return epsilon at ``delta`` of everything together and whose figure it is; inf where no figure is finite."""
    merged: dict[Step, int] = {}
    for step, count in parts:
        merged[step] = merged.get(step, 0) + count
    steps = [(step, count) for step, count in merged.items() if count]
    if not steps and not searches and not given:
        return 0.0, "none"
    if len(steps) == 1 and not searches and not given:
        ((step, count),) = steps
        bounds = accounting.epsilon_bounds(step, count, delta, count)
        return (math.inf, "none") if bounds.value is None else (bounds.value, bounds.accountant)
    renyi_alone = [(step, count) for step, count in steps if step.who == ("RDP",)]
    others = [each for each in steps if each not in renyi_alone]
    found: list[tuple[float | None, str]] = []
    if not given:
        found.append((accounting.renyi_epsilon(steps, searches, delta), "RDP"))
    if not renyi_alone and not searches:
        found.append((_by_loss(others, given, delta), "PLD"))
    elif others or given:
        halves = (_by_loss(others, given, delta / 2), accounting.renyi_epsilon(renyi_alone, searches, delta / 2))
        found.append((None if None in halves else math.fsum(half or 0.0 for half in halves), "PLD and RDP"))
    return min(((epsilon, who) for epsilon, who in found if epsilon is not None), default=(math.inf, "none"))


def _by_loss(steps: Sequence[Steps], given: Sequence[Given], delta: float) -> float | None:
    """Return epsilon by privacy loss distributions, on a grid that is halved until epsilon settles; None if none is finite."""
    parts = [_one_gaussian(step, count) for step, count in steps]
    rounding = accounting.FFT_ROUNDING * (sum(count for _, count in parts) + len(parts) + len(given))
    if delta <= 2 * rounding:
        return None
    width = math.fsum(accounting.loss_width(step, count) for step, count in parts) + 2 * math.fsum(e for e, _ in given)
    if not math.isfinite(width):
        return None
    grid, found = max(min(4e-3, width / _FIRST), 16 * width / _MOST), math.inf
    while True:
        finer = distributions.epsilon_together(parts, given, delta - rounding, grid)
        # each is an upper bound, also where the finer one isn't the smaller
        settled, found = abs(found - finer) <= _SETTLED * finer, min(found, finer)
        if settled or grid / 2 < width / _MOST:
            return found if math.isfinite(found) else None
        grid /= 2


def _one_gaussian(step: Step, count: int) -> Steps:
    """Return full batches as one step with less noise: no composition is needed for them."""
    if step.sampling != "full-batch":
        return step, count
    return Step(sampling="full-batch", adjacency=step.adjacency, rate=1.0, sigma=step.sigma / math.sqrt(count)), 1
