"""Exact planners over contiguous groups: a partition is best for the cost it is given, not nearly best.

:func:`least_peak` is the minimax dynamic programme ``f_m(e) = min_s max(f_{m-1}(s-1), c(s, e))``, right for ANY interval
cost c. :func:`fewest_groups` and :func:`least_time` are its inverses: for a bound on every interval's cost, the least number
of groups, and the least sum of another cost.

Legend: n layers; ``cost[s, e]`` of the group of layers s..e (``s <= e``), ``inf`` where it can't be.
"""

from __future__ import annotations

import math

import numpy as np

#: First layers of the groups, ascending, beginning with 0.
Starts = tuple[int, ...]


def least_peak(cost: np.ndarray, groups: int) -> tuple[Starts, float]:
    """Return the partition into AT MOST ``groups`` contiguous groups with the least greatest cost, and that cost.

    Of equally good ones, one with the fewest groups. O(n^2 groups).

    Raises:
        ValueError: ``groups < 1``.
    """
    if groups < 1:
        raise ValueError(f"groups={groups} must be at least 1")
    n = len(cost)
    best = cost[0].astype(float).copy()  # of layers 0..e in one group
    choices: list[np.ndarray] = []
    overall, used = best[n - 1], 1
    for m in range(2, min(groups, n) + 1):
        # [s, e]: the last group begins at s; what is above it is in m - 1 groups
        above = np.concatenate([[math.inf], best[:-1]])
        through = np.maximum(above[:, None], cost)
        choices.append(through.argmin(axis=0))
        best = through.min(axis=0)
        if best[n - 1] < overall:
            overall, used = best[n - 1], m
    starts, end = [], n - 1
    for m in range(used, 1, -1):
        start = int(choices[m - 2][end])
        starts.append(start)
        end = start - 1
    return (0, *reversed(starts)), float(overall)


def fewest_groups(cost: np.ndarray, bound: float) -> Starts | None:
    """Return the partition into the fewest groups of cost at most ``bound``; None if there is none."""
    return least_sum(np.where(cost <= bound, 1.0, math.inf), len(cost))


def least_sum(cost: np.ndarray, groups: int) -> Starts | None:
    """Return the partition into at most ``groups`` groups with the least sum of costs; None if every one is infinite.

    Of equally good ones, one with the fewest groups.
    """
    n = len(cost)
    best = cost[0].astype(float).copy()
    tables: list[np.ndarray] = []
    overall, used = best[n - 1], 1
    for m in range(2, min(groups, n) + 1):
        above = np.concatenate([[math.inf], best[:-1]])
        through = above[:, None] + cost
        tables.append(through.argmin(axis=0))
        best = through.min(axis=0)
        if best[n - 1] < overall * (1 - 1e-12) if math.isfinite(overall) else math.isfinite(best[n - 1]):
            overall, used = best[n - 1], m
    if not math.isfinite(overall):
        return None
    starts, end = [], n - 1
    for m in range(used, 1, -1):
        start = int(tables[m - 2][end])
        starts.append(start)
        end = start - 1
    return (0, *reversed(starts))


def greatest(cost: np.ndarray, starts: Starts) -> float:
    """Return the greatest cost of the groups of a partition."""
    ends = [*(s - 1 for s in starts[1:]), len(cost) - 1]
    return float(max(cost[s, e] for s, e in zip(starts, ends, strict=True)))
