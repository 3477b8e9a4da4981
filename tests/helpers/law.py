"""Whether batches are Poisson samples: two chi-squared tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

ALPHA = 1e-6  # of each of the two tests: a right sampler fails one run in 500,000


def p_values(seen: np.ndarray, rate: float) -> tuple[float, float]:
    """(by sample, by size), two-sided: chi-squared of how often each sample was drawn, and of how the sizes vary.

    Args:
        seen: ``[steps, samples]``, how often each sample was in each step's batch.
        rate: q.
    """
    steps, number = seen.shape
    by_sample = ((seen.sum(0) - steps * rate) ** 2 / (steps * rate * (1 - rate))).sum()
    by_size = ((seen.sum(1) - number * rate) ** 2 / (number * rate * (1 - rate))).sum()
    first, second = (
        2 * min(stats.chi2.cdf(x, d), stats.chi2.sf(x, d)) for x, d in ((by_sample, number), (by_size, steps))
    )
    return float(first), float(second)


def two_sided(law: Any, value: float) -> float:
    """Probability, under ``law`` of scipy, of a value at least as far out."""
    return min(1.0, 2 * min(law.cdf(value), law.sf(value - 1 if law.dist.name == "binom" else value)))
