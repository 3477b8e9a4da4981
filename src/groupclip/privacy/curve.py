"""The whole guarantee of a plan: delta as a function of epsilon, on one grid, and the Gaussian curve nearest above it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from groupclip.privacy import accounting
from groupclip.privacy.distributions import composed
from groupclip.privacy.mechanism import Mechanism

SHARES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)  # of epsilon, at which delta is told
_FINE, _MOST = 20, 60  # points of the curve to one epsilon, and in all
_FLOOR = 1e-10  # deltas below it say more of the accounting than of the plan


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Holds upper bounds on delta at some epsilons, and mu of the Gaussian curve nearest above, an estimate; None if unknown."""

    points: tuple[tuple[float, float], ...] = ()
    mu: float | None = None


def curve_of(mechanism: Mechanism, *, steps: int, epsilon: float, rounds: int | None = None) -> Curve:
    """Return the curve around ``epsilon`` after ``steps`` steps, or what ``rounds`` of the accountants they amount to.

    Quick: it is computed on the grid of one figure.

    Each delta is an upper bound. So is that of :meth:`groupclip.Mechanism.delta`, which refines its grid and may be smaller. mu is
    an ESTIMATE, of finitely many points with delta of 1e-10 and more: below, the true curve may lie above the Gaussian one.
    """
    if steps == 0 or epsilon <= 0:
        return Curve()
    epsilons = [epsilon * (number / _FINE) for number in range(_MOST + 1)]
    deltas = _deltas(mechanism, mechanism.rounds(steps) if rounds is None else rounds, epsilons)
    found = dict(zip(epsilons, deltas, strict=True))
    points = tuple((at, found[at]) for at in (epsilons[round(share * _FINE)] for share in SHARES) if found[at] < 1)
    mus = [accounting.gaussian_mu(at, delta) for at, delta in found.items() if _FLOOR <= delta < 1]
    return Curve(points=points, mu=max(mus, default=None))


def _deltas(mechanism: Mechanism, rounds: int, epsilons: Sequence[float]) -> list[float]:
    """Return upper bounds on delta, the smaller of the accountants' at each epsilon; 1 where none is known."""
    step = mechanism.step
    if "exact" in step.who:
        exact = [accounting.delta_bounds(step, rounds, at, rounds).exact for at in epsilons]
        return [1.0 if delta is None else _within(delta) for delta in exact]
    found = [1.0] * len(epsilons)
    if "RDP" in step.who:
        found = [min(one, bound) for one, bound in zip(found, accounting.renyi_deltas(step, rounds, epsilons), strict=True)]
    grid, _ = accounting.grid_for(step, max(rounds, mechanism.rounds()), 1e-5)
    if grid is not None:
        bounds: Sequence[float] = composed(step, rounds, grid).get_delta_for_epsilon(list(epsilons))  # pyright: ignore[reportAssignmentType]
        rounding = accounting.FFT_ROUNDING * rounds
        found = [min(one, max(float(bound), 0.0) + rounding) for one, bound in zip(found, bounds, strict=True)]
    return [_within(delta) for delta in found]


def _within(delta: float) -> float:
    """Keep a bound in (0, 1]: no Gaussian has delta 0, so underflow must not claim it."""
    return min(max(delta, 1e-300), 1.0) if math.isfinite(delta) else 1.0
