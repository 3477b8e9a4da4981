"""The distance M(x; r, xi, gamma) of the paper's convergence proof, its inverse, and the best r.

Legend, as in the paper: M groups; z = xi / sqrt(M), the gradient noise of one group; r > 1 free, to be chosen best;
x = ||g^(m)|| - z / r, how far the norm of one group's gradient lies above z / r; gamma of automatic clipping.

Lemma "M explicit form": a clipped gradient points the right way, ``<g, E[g_i / (||g_i|| + gamma)]> >= M(x) / 2``.

Departure from the paper: it calls M non-negative and then uses Markov's inequality on it. M is negative for x < 0, that is
for gradients below z / r. The proof stands with max(M, 0): the left side is never negative under the paper's symmetric
noise, since v / (||v|| + gamma) is a monotone map. Nothing below changes by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..arguments import positive, whole

GAMMA = 0.01  # the paper's

Numbers = NDArray[np.float64]


def distance(x: ArrayLike, *, r: float, xi: float, gamma: float = GAMMA, groups: int = 1) -> Numbers:
    """M(x; r, xi, gamma), the right side of Lemma "M explicit form" without its 1/2.

    Strictly increasing in x >= 0, from 0 at x = 0 towards :func:`largest_distance`.

    Args:
        x: any shape, >= -z / r (there the gradient is zero).

    >>> float(distance(0.0, r=2.0, xi=1.0))
    0.0
    >>> float(distance(1.0, r=2.0, xi=1.0).round(6))  # 0.01 / 1.51 - 0.01 / 4.51
    0.004405
    """
    r, z, gamma = _check(r, xi, gamma, groups)
    x = np.asarray(x, dtype=np.float64)
    if np.any(x < -z / r):
        raise ValueError(f"x={float(x.min())} lies below -xi/(r sqrt(M))={-z / r}: no gradient has a negative norm")
    norm = x + z / r
    # one fraction: the paper's difference of two nearly equal ones cancels
    return 2 * gamma * x * norm / (((r - 1) * norm + gamma) * ((r + 1) * norm + gamma))


def largest_distance(*, r: float, gamma: float = GAMMA) -> float:
    """Return ``2 gamma / (r^2 - 1)``: what M tends to as x grows, and so where its inverse ends."""
    r, _, gamma = _check(r, 0.0, gamma, 1)
    return 2 * gamma / (r * r - 1)


def inverse(y: ArrayLike, *, r: float, xi: float, gamma: float = GAMMA, groups: int = 1) -> Numbers:
    """x >= 0 with ``distance(x) == y`` (Lemma "M inverse and asymptotic", first formula; it is right as printed).

    Raises:
        ValueError: y outside [0, largest_distance): M never gets there. The paper doesn't say so.

    >>> float(inverse(distance(3.0, r=2.0, xi=1.0), r=2.0, xi=1.0).round(9))
    3.0
    """
    r, z, gamma = _check(r, xi, gamma, groups)
    y = np.asarray(y, dtype=np.float64)
    if not np.all((y >= 0) & (y < 2 * gamma / (r * r - 1))):
        raise ValueError(f"the distance must lie in [0, 2 gamma / (r^2 - 1)) = [0, {2 * gamma / (r * r - 1)}); got {y}")
    return _inverse(y, r, (r * r - 1) * y / (2 * gamma), z, gamma)


def linear_inverse(y: ArrayLike, *, r: float, xi: float, gamma: float = GAMMA, groups: int = 1) -> Numbers:
    """Return the same for y -> 0 at a FIXED r (the lemma's second formula): ``y (r^2 (z + gamma)^2 - z^2) / (2 z gamma r)``.

    >>> float(linear_inverse(0.001, r=2.0, xi=1.0).round(6))  # 0.001 (4 * 1.0201 - 1) / 0.04
    0.07701
    """
    r, z, gamma = _check(r, xi, gamma, groups)
    if z == 0:
        raise ValueError("xi=0: without gradient noise M begins with a square, and its inverse isn't linear at 0")
    return np.asarray(y, dtype=np.float64) * (r * r * (z + gamma) ** 2 - z * z) / (2 * z * gamma * r)


def least_norm(y: float, *, xi: float, gamma: float = GAMMA, groups: int = 1) -> tuple[float, float]:
    """Return ``min over r > 1 of sqrt(M) inverse(y; r) + xi / r``, by numbers; and the r.

    This is the norm of the whole gradient that the proof's last inequality without an asymptote ("for any r > 1, a > 0")
    allows when every group's distance is below y. Every r gives a valid bound: a search that stops short is still right.

    >>> norm, r = least_norm(1e-8, xi=1.0)
    >>> round(norm / 1e-4, 3), round(2 * 1.01 / 0.01**0.5 * 0.5**0.5, 3)  # the paper's asymptote is too small
    (18.493, 14.284)
    """
    y = positive("y", y)
    _, z, gamma = _check(2.0, xi, gamma, groups)

    def norm(logit: Numbers) -> Numbers:
        share = 1 / (1 + np.exp(-logit))  # (r^2 - 1) y / (2 gamma), in (0, 1) exactly where the inverse exists
        r = np.sqrt(1 + 2 * gamma / y * share)
        return math.sqrt(groups) * _inverse(np.asarray(y), r, share, z, gamma) + xi / r

    best, least = _minimum(norm)
    return least, math.sqrt(1 + 2 * gamma / y / (1 + math.exp(-best)))


def small_level_constant(*, xi: float, gamma: float = GAMMA, groups: int = 1) -> float:
    """Return the limit of ``least_norm(y) / sqrt(y)`` for y -> 0.

    The paper has ``sqrt(2 / gamma) (xi + gamma sqrt(M))`` here. It takes the inverse's asymptote at a fixed r and then the
    best r, which grows like ``1 / sqrt(y)``: there ``(r^2 - 1) y`` is as large as ``2 gamma``, the asymptote is not one, and
    what it left out is as large as what it kept. With ``r = sqrt(2 gamma s / y)`` and s in (0, 1) fixed, the limit is ::

        min_s  sqrt(M) [ sqrt(2 gamma s) (z + gamma) + gamma (sqrt(z^2/(2 gamma s) + 2 (z + gamma)) - z/sqrt(2 gamma s)) ]
                       / (2 gamma (1 - s))  +  xi / sqrt(2 gamma s)

    which is ``3 sqrt(3) / 4 = 1.299`` times the paper's where z >> gamma (at s = 1/3), and half of it where z << gamma.

    >>> round(small_level_constant(xi=1000.0) / (2**0.5 / 0.1 * (1000 + 0.01)), 3)
    1.299
    """
    _, z, gamma = _check(2.0, xi, gamma, groups)

    def constant(logit: Numbers) -> Numbers:
        share = 1 / (1 + np.exp(-logit))
        a, w = z / np.sqrt(2 * gamma * share), 2 * (z + gamma)
        root = gamma * w / (np.sqrt(a * a + w) + a)
        whole_inverse = (np.sqrt(2 * gamma * share) * (z + gamma) + root) / (2 * gamma / (1 + np.exp(logit)))
        return math.sqrt(groups) * (whole_inverse + a)

    return float(_minimum(constant)[1])


def _inverse(y: Numbers, r: float | Numbers, share: Numbers | float, z: float, gamma: float) -> Numbers:
    """Return the lemma's formula with ``share = (r^2 - 1) y / (2 gamma)`` and its root rationalised, so that nothing cancels."""
    a = z / r
    w = 2 * (z + gamma) * y + y * y
    root = np.divide(gamma * w, np.sqrt(a * a + w) + a, out=np.zeros_like(w + a), where=w + a > 0)
    return (2 * gamma * share * a + r * gamma * y + root) / (2 * gamma * (1 - share))


def _minimum(function: Callable[[Numbers], Numbers]) -> tuple[float, float]:
    """Return where on the logit axis the function is least, and its value: a grid, then ever finer ones around the best point."""
    low, high, found = -60.0, 30.0, (0.0, math.inf)
    for _ in range(8):
        grid = np.linspace(low, high, 361)
        values = function(grid)
        best = int(np.argmin(values))
        found = float(grid[best]), float(values[best])
        low, high = grid[max(best - 2, 0)], grid[min(best + 2, 360)]
    return found


def _check(r: float, xi: float, gamma: float, groups: int) -> tuple[float, float, float]:
    """r, the noise z of one group, and gamma."""
    r, gamma = positive("r", r), positive("gamma", gamma)
    if r <= 1:
        raise ValueError(f"r={r!r} must be > 1 (Lemma 'M explicit form')")
    if not 0 <= xi < math.inf:
        raise ValueError(f"xi={xi!r} must be >= 0 and finite: the root mean square of the gradient noise")
    return r, xi / math.sqrt(whole("groups", groups, least=1)), gamma
