"""Exact planners over contiguous groups: a partition is best for the cost it is given, not nearly best.

:func:`least_peak` is the minimax dynamic programme ``f_m(e) = min_s max(f_{m-1}(s-1), c(s, e))``, right for ANY interval
cost c. :func:`least_sum` minimises a sum over the groups instead, of a cost that is ``inf`` where a bound isn't kept.

Legend: n layers; ``cost[s, e]`` of the group of layers s..e (``s <= e``), ``inf`` where it can't be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

#: First layers of the groups, ascending, beginning with 0.
Starts = tuple[int, ...]


def least_peak(cost: np.ndarray, groups: int) -> tuple[Starts, float]:
    """Return the partition into AT MOST ``groups`` contiguous groups with the least greatest cost, and that cost.

    Of equally good ones, one with the fewest groups. O(n^2 groups).

    Raises:
        ValueError: ``groups < 1``.
    """
    return least_peaks(cost, groups)[-1]


def least_peaks(cost: np.ndarray, groups: int) -> list[tuple[Starts, float]]:
    """Return what :func:`least_peak` finds for 1 group, and for each number up to ``groups`` with which less can be reached."""
    if groups < 1:
        raise ValueError(f"groups={groups} must be at least 1")
    n = len(cost)
    best = cost[0].astype(float).copy()  # of layers 0..e in one group
    choices: list[np.ndarray] = []
    found: list[tuple[Starts, float]] = [((0,), float(best[n - 1]))]
    while len(choices) + 2 <= min(groups, n):  # groups
        # [s, e]: the last group begins at s; what is above it is in one group less
        above = np.concatenate([[math.inf], best[:-1]])
        through = np.maximum(above[:, None], cost)
        choices.append(through.argmin(axis=0))
        best = through.min(axis=0)
        if best[n - 1] < found[-1][1]:
            found.append((_backwards(choices, n), float(best[n - 1])))
    return found


def _backwards(choices: Sequence[np.ndarray], n: int) -> Starts:
    """Return the partition of n layers. ``choices[k][e]``: where the last of k + 2 groups of the layers 0..e begins."""
    starts, end = [], n - 1
    for choice in reversed(choices):
        start = int(choice[end])
        starts.append(start)
        end = start - 1
    return (0, *reversed(starts))


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
    return _backwards(tables[: used - 1], n) if math.isfinite(overall) else None


def greatest(cost: np.ndarray, starts: Starts) -> float:
    """Return the greatest cost of the groups of a partition."""
    ends = [*(s - 1 for s in starts[1:]), len(cost) - 1]
    return float(max(cost[s, e] for s, e in zip(starts, ends, strict=True)))
