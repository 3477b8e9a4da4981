"""Correlated noise with few bands: lower-triangular Toeplitz matrices C, given by the b leading entries of their first column.

Steps release ``G + C^-1 Z`` in place of ``G + Z``, Z independent noise: as private as ``C G + Z``. A sample that takes part in
steps at least b apart moves rows of C G that don't overlap, each time by a column of C. Columns have norm 1 at most, so each time
is one Gaussian with the noise of Z (Choquette-Choo et al. 2023, arXiv 2306.08153, theorem 4).

What is gained: the weights after step t follow the SUM of t gradients (of steps of one size), and the sums of ``C^-1 Z`` have less
noise than those of Z, for neighbouring steps' noise cancels. The coefficients here are those with the least mean squared error of
all T sums (McKenna 2024, arXiv 2405.15913). Any others of norm 1 are as private.
"""

from functools import lru_cache

import numpy as np

_FAR = 1e6

#: Up to so many steps, coefficients are the best for them. For more they are the best for so many.
LONGEST = 20_000


@lru_cache(maxsize=64)
def coefficients(steps: int, bands: int) -> tuple[float, ...]:
    """Return the ``bands`` entries of the first column of C, of norm 1, that give prefix sums of ``steps`` steps the least error.

    The largest norm of a column of C is that of the first: later ones are cut off by the last row.
    """
    from scipy.optimize import minimize

    steps = min(steps, LONGEST)
    bands = min(bands, steps)
    if bands == 1:
        return (1.0,)
    left = np.arange(steps, 0, -1) / steps  # share of the sums that an entry of A C^-1 is in
    start = _square_root(bands)

    def objective(free: np.ndarray) -> tuple[float, np.ndarray]:
        column = np.concatenate([[1.0], free])
        sums = _through_inverse(column, np.ones(steps))
        weighted, norm = left * sums, float(column @ column)
        error = float(weighted @ sums)
        if not np.isfinite(error):  # a step too far along the search: C^-1 grows without bound there
            return _FAR, np.zeros(bands - 1)
        # d sums / d column_k = -(sums / column) shifted by k
        twice = _through_inverse(column, sums)
        slopes = np.array([-(weighted[k:] @ twice[: steps - k]) for k in range(1, bands)])
        return float(np.log(error) + np.log(norm)), 2 * slopes / error + 2 * free / norm

    options = {"maxiter": 5_000, "maxfun": 20_000, "ftol": 0.0, "gtol": 1e-11, "maxcor": 50}
    with np.errstate(over="ignore", invalid="ignore"):
        found = minimize(objective, start[1:], jac=True, method="L-BFGS-B", options=options).x
    column = np.concatenate([[1.0], found])
    return tuple(float(entry) for entry in column / np.sqrt(column @ column))


def column_norm(column: tuple[float, ...]) -> float:
    """Return the largest l2 norm of a column of C: how far one sample of norm 1 in one step moves C G."""
    return float(np.sqrt(np.square(column).sum()))


def prefix_error(column: tuple[float, ...], steps: int) -> float:
    """Return the root mean square error of all ``steps`` prefix sums, in standard deviations of Z; ``O(steps bands)``."""
    sums = _through_inverse(np.asarray(column), np.ones(steps))
    return float(np.sqrt((np.arange(steps, 0, -1) / steps) @ np.square(sums)))


def inverse(column: tuple[float, ...], steps: int) -> np.ndarray:
    """Return the first ``steps`` entries of the first column of C^-1, ``[steps]``: shares of own and earlier noise in a step's."""
    return _through_inverse(np.asarray(column), np.eye(1, steps)[0])


def _through_inverse(column: np.ndarray, signal: np.ndarray) -> np.ndarray:
    """Return ``C^-1 signal``."""
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], column, signal))


def _square_root(count: int) -> np.ndarray:
    """Return entries of the square root of the prefix-sum matrix, the best C without bands for the largest error."""
    k = np.arange(1, count)
    return np.cumprod(np.concatenate([[1.0], (2 * k - 1) / (2 * k)]))
