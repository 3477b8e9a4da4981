"""Epsilon and delta of repeated Gaussian steps on sampled batches: with distributions.py, the only file that imports dp-accounting.

Legend: q sample rate, sigma noise multiplier, steps T. One step is the paper's noisy sum of clipped gradients
(its equation of DP optimizers) over a batch; sigma is the noise over ||(R_1, ..., R_M)||, the most that ONE sample
adds to the sum, under every adjacency. Replacing a sample moves the sum by twice that: this file takes it into
account, and not by dp-accounting's relation alone, for its RDP ignores it (measured: RdpAccountant gives a Gaussian
event the same divergence under REPLACE_ONE as under ADD_OR_REMOVE_ONE, PLDAccountant doubles the sensitivity).

Two accountants, both upper bounds, so the smaller of the two is one as well:

* RDP (Mironov 2017; the paper's): linear in T, cheap, loose by 5 to 20 % at the usual settings.
* PLD (Doroshenko et al. 2022, "connect the dots"): tight, but on a grid and through an FFT. Three faults of a
  plain call are met here: a fixed grid is too coarse for many steps (so it is refined), rounding in the FFT
  makes the result too SMALL when delta is tiny and T large (so delta is reduced by a bound on that rounding),
  and some settings need gigabytes (so the size is predicted first).

Full batches need neither: T steps are one Gaussian mechanism with noise sigma / sqrt(T), whose epsilon is exact
(Balle and Wang 2018, theorem 8).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from groupclip.privacy.absl_log import quiet
from groupclip.privacy.distributions import composed
from groupclip.privacy.loss_width import mixture_tail, width
from groupclip.privacy.sampled_step import Bounds, Step

SMALLEST_DELTA = 1e-12

_TAIL = 1e-15  # the mass that dp-accounting cuts off a composed distribution
# points of the composed distribution; the most costs about a second and 100 MB
_ROUGH_BINS, _FIRST_BINS, _MOST_BINS = 20_000, 5_000, 250_000
_FIRST_GRID, _COARSEST_GRID = 4e-3, 10.0  # of privacy loss
_SETTLED = 0.005  # the grid is halved until epsilon moves by less than this share
# Rounding in fft(p)**T, measured at q = 1 against the closed form: 2e-17 T (T = 1e4) to 6e-17 T (T = 1e6).
FFT_ROUNDING = 5e-16
# Rounding in log A(alpha) of dp-accounting's RDP; matters only where q is so small that it cancels.
_RDP_ROUNDING = 1e-15
_FEW_ORDERS = (1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0, 256.0, 512.0)
# without replacement the divergence is known at whole orders only, at a cost that grows with their square
_WHOLE_ORDERS = (*(float(order) for order in range(2, 33)), 40.0, 48.0, 56.0, 64.0, 96.0, 128.0, 192.0, 256.0)


def version() -> str:
    """Return the version of dp-accounting that the figures come from."""
    from importlib.metadata import version as installed

    return installed("dp-accounting")


@lru_cache(maxsize=4096)
def epsilon_bounds(step: Step, steps: int, delta: float, plan: int) -> Bounds:
    """Return bounds on epsilon at ``delta`` after ``steps`` of ``plan`` planned steps (the plan chooses the PLD's grid).

    One grid for the whole plan keeps epsilon non-decreasing in ``steps``, and makes a curve over steps cheap.
    """
    grid, note = grid_for(step, plan, delta)
    return _on_grid(step, steps, delta, grid, note)


def rough_bounds(step: Step, steps: int, delta: float) -> Bounds:
    """Do :func:`epsilon_bounds` cheaply, for a search over sigma: PLD on a few points and RDP at a few orders, evaluated once."""
    orders = None if step.sampling == "without-replacement" else _FEW_ORDERS  # its own are few, and whole
    grid = _width(step, steps, orders) / _ROUGH_BINS if "PLD" in step.who else math.inf
    found = _on_grid(step, steps, delta, grid if grid <= _COARSEST_GRID else None, "", orders)
    if orders is not None and found.rdp is not None and found.value == found.rdp:
        # RDP is what will be reported: a guess off by half would cost more evaluations than all orders take
        found = replace(found, rdp=_rdp_epsilon(step, steps, delta))
    return found


def _on_grid(
    step: Step, steps: int, delta: float, grid: float | None, note: str, orders: tuple[float, ...] | None = None
) -> Bounds:
    return Bounds(
        rdp=_rdp_epsilon(step, steps, delta, orders) if "RDP" in step.who else None,
        pld=None if grid is None else _pld_epsilon(step, steps, delta, grid),
        exact=_exact(step, steps, delta=delta) if "exact" in step.who else None,
        note=note,
    )


@lru_cache(maxsize=4096)
def delta_bounds(step: Step, steps: int, epsilon: float, plan: int) -> Bounds:
    """Return bounds on delta at ``epsilon``; as :func:`epsilon_bounds`, on the grid that serves delta = 1e-5.

    Or, where the steps are too many for that, the smallest delta that PLD resolves well: what was asked for is no delta.
    """
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    renyi = None
    if "RDP" in step.who and (curve := _compose_rdp(step, steps)):
        orders, divergences = zip(*curve, strict=True)
        renyi = float(rdp.compute_delta(orders, divergences, epsilon)[0])
    grid, note = grid_for(step, plan, max(1e-5, 10 * FFT_ROUNDING * plan))
    pld = None
    if grid is not None:
        value = _settle_delta(step, steps, epsilon, grid, finest=_width(step, plan) / _MOST_BINS)
        pld = max(value, 0.0) + FFT_ROUNDING * steps if math.isfinite(value) else None
    exact = _exact(step, steps, epsilon=epsilon) if "exact" in step.who else None
    return Bounds(rdp=renyi, pld=pld, exact=exact, note=note)


def _settle_delta(step: Step, steps: int, epsilon: float, grid: float, finest: float) -> float:
    """Compute delta on ``grid``, halved until delta settles: a grid that serves an epsilon of zero says little of delta."""
    value = float(composed(step, steps, grid).get_delta_for_epsilon(epsilon))
    while grid / 2 >= finest:
        grid, before = grid / 2, value
        value = float(composed(step, steps, grid).get_delta_for_epsilon(epsilon))
        if not abs(before - value) > _SETTLED * value:
            break
    return value


def guessed_epsilon(step: Step, steps: int, delta: float) -> float | None:
    """Return where a search may start: RDP from a few orders, ten times faster, as if batches were Poisson samples."""
    poisson = Step(sampling="poisson", adjacency="add-or-remove-one", rate=step.rate, sigma=step.one_sided)
    return _rdp_epsilon(poisson, steps, delta, _FEW_ORDERS)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the mu of the Gaussian mechanism (mu-GDP) that spends exactly (epsilon, delta)."""
    import dp_accounting

    return 1 / float(dp_accounting.get_sigma_gaussian(epsilon, delta))


@lru_cache(maxsize=256)
def search_epsilon(step: Step, steps: int, delta: float, mean: float, shape: float) -> float | None:
    """Return epsilon of the best of a random number of runs, by RDP (Papernot and Steinke 2022, theorems 2 and 6).

    Args:
        mean, shape: of the number of runs; truncated negative binomial, Poisson where shape is infinite.
    """
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    curve = _compose_rdp(step, steps)
    if not curve:
        return None
    orders, divergences = zip(*curve, strict=True)
    # the function of the event RepeatAndSelectDpEvent, on divergences that hold this file's allowance for rounding
    repeated = rdp._compute_rdp_repeat_and_select(orders, divergences, mean, shape)
    epsilon = float(rdp.compute_epsilon(orders, repeated, delta)[0])
    return epsilon if math.isfinite(epsilon) else None


def renyi_epsilon(
    parts: Sequence[tuple[Step, int]], searches: Sequence[tuple[Step, int, float, float]], delta: float
) -> float | None:
    """Return epsilon of steps of several plans, and of searches (step, steps, mean, shape), by the sum of their RDP.

    None if one of them has no RDP, or the sum is finite nowhere.
    """
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    if any("RDP" not in step.who for step, *_ in (*parts, *searches)):
        return None
    curves = [dict(_compose_rdp(step, steps)) for step, steps in parts]
    for step, steps, mean, shape in searches:
        orders, divergences = zip(*_compose_rdp(step, steps), strict=True)
        # at orders where it is infinite too
        curves.append(dict(zip(orders, rdp._compute_rdp_repeat_and_select(orders, divergences, mean, shape), strict=True)))
    orders = sorted(set.intersection(*map(set, curves)))
    if not orders:
        return None
    epsilon = float(rdp.compute_epsilon(orders, [math.fsum(curve[order] for curve in curves) for order in orders], delta)[0])
    return epsilon if math.isfinite(epsilon) else None


def renyi_deltas(step: Step, steps: int, epsilons: Sequence[float]) -> list[float]:
    """Return bounds on delta at each epsilon by RDP; 1 where it is finite nowhere."""
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    curve = _compose_rdp(step, steps)
    orders, divergences = zip(*curve, strict=True) if curve else ((), ())
    return [float(rdp.compute_delta(orders, divergences, epsilon)[0]) if curve else 1.0 for epsilon in epsilons]


def loss_width(step: Step, steps: int) -> float:
    """Estimate how wide the privacy loss of so many steps is; inf if that can't be told."""
    return _width(step, steps)


def _exact(step: Step, steps: int, *, epsilon: float = 0.0, delta: float | None = None) -> float | None:
    """Account full batches: epsilon at ``delta``, or delta at ``epsilon`` if no delta is given."""
    import dp_accounting
    import numpy as np
    from scipy.special import log_ndtr

    mu = math.sqrt(steps) / step.at_once.one_sided
    with np.errstate(all="ignore"):  # log(0) on the way to a finite answer
        if delta is not None:
            value = float(dp_accounting.get_epsilon_gaussian(1 / mu, delta))
            value += 2e-12 if value > 0 else 0.0  # the root is found to 1e-12
        else:
            high, low = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
            value = float(np.exp(high) * -np.expm1(min(low - high, 0.0)))
    return max(0.0, value) if math.isfinite(value) else None


def _rdp_epsilon(step: Step, steps: int, delta: float, at: tuple[float, ...] | None = None) -> float | None:
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    curve = _compose_rdp(step, steps, at)
    if not curve:
        return None
    orders, divergences = zip(*curve, strict=True)
    epsilon = float(rdp.compute_epsilon(orders, divergences, delta)[0])
    return epsilon if math.isfinite(epsilon) else None


def _compose_rdp(step: Step, steps: int, at: tuple[float, ...] | None = None) -> list[tuple[float, float]]:
    """Return (order, divergence after ``steps`` steps), at orders where it is finite."""
    return [(order, steps * rate) for order, rate in _rdp_curve(step.at_once, at) if rate < math.inf]


@lru_cache(maxsize=256)
def _rdp_curve(step: Step, at: tuple[float, ...] | None = None) -> tuple[tuple[float, float], ...]:
    """Return orders (dp-accounting's by default) and ONE step's Renyi divergence at each; inf where it has none."""
    import dp_accounting
    from dp_accounting import rdp

    event, relation = dp_accounting.GaussianDpEvent(step.one_sided), dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    if step.sampling == "without-replacement":
        relation, at = dp_accounting.NeighboringRelation.REPLACE_ONE, _WHOLE_ORDERS if at is None else at
        event = dp_accounting.SampledWithoutReplacementDpEvent(step.dataset_size, step.batch, event)
    elif step.sampling == "poisson":
        event = dp_accounting.PoissonSampledDpEvent(step.rate, event)
    with quiet():
        accountant = rdp.RdpAccountant(at, relation).compose(event)
    # A negative divergence is rounding, and dp-accounting would answer epsilon = 0 to it.
    return tuple(
        (float(order), max(float(rate), 0.0) + _RDP_ROUNDING / (order - 1) if math.isfinite(rate) else math.inf)
        for order, rate in zip(accountant.orders, accountant.rdp, strict=True)
    )


@lru_cache(maxsize=4096)
def _pld_epsilon(step: Step, steps: int, delta: float, grid: float) -> float | None:
    rounding = FFT_ROUNDING * steps
    if delta <= 2 * rounding:
        return None
    import numpy as np  # here: it takes a while, and help needs none of it

    with np.errstate(over="ignore"):  # an infinite quotient is an infinite epsilon, and RDP's is taken
        epsilon = float(composed(step, steps, grid).get_epsilon_for_delta(delta - rounding))
    return epsilon if math.isfinite(epsilon) and epsilon >= 0 else None


@lru_cache(maxsize=1024)
def grid_for(step: Step, steps: int, delta: float) -> tuple[float | None, str]:
    """Return the PLD's grid: halved until epsilon settles or the size cap is met. (None, why) where it can't serve."""
    if "PLD" not in step.who:
        return None, ""
    instead = "; RDP alone" if "RDP" in step.who else ""
    if delta <= 2 * FFT_ROUNDING * steps:
        return None, f"delta={delta:g} is below what PLD resolves in {steps:,} steps{instead}"
    width = _width(step, steps)
    finest = width / _MOST_BINS
    grid = max(min(_FIRST_GRID, width / _FIRST_BINS), 16 * finest)
    if grid > _COARSEST_GRID:
        return None, f"the privacy loss is too wide for the PLD accountant{instead}"
    epsilon = _pld_epsilon(step, steps, delta, grid)
    while epsilon is not None and grid / 2 >= finest:
        finer = _pld_epsilon(step, steps, delta, grid / 2)
        if finer is None:
            break
        grid, moved, epsilon = grid / 2, abs(epsilon - finer), finer
        if moved <= _SETTLED * finer:
            return grid, ""
    if epsilon is None:
        return None, f"the PLD accountant has no finite answer here{instead}"
    return grid, "the PLD accountant's grid met its size limit before it settled: a bound, not a tight one"


def _width(step: Step, steps: int, orders: tuple[float, ...] | None = None) -> float:
    """Estimate the width of the composed distribution in privacy loss; inf if RDP can't tell."""
    tail = _guess_tail(step, steps, orders)
    return math.inf if tail is None else width(step.at_once, tail, _TAIL)


def _guess_tail(step: Step, steps: int, orders: tuple[float, ...] | None = None) -> float | None:
    """Estimate how large the privacy loss gets, by RDP of the neighbours that are added or removed."""
    if step.is_mixture:
        return mixture_tail(step, steps, _TAIL)
    worst = step.at_once
    poisson = Step(sampling="poisson", adjacency="add-or-remove-one", rate=worst.rate, sigma=worst.sigma)
    tail = _rdp_epsilon(poisson, steps, _TAIL, orders)
    return None if tail is None else tail * (2 if step.adjacency == "replace-one" else 1)
