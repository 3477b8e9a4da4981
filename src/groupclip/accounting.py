"""Epsilon and delta of repeated Poisson-sampled Gaussian steps: the only file that imports dp-accounting.

Legend: q sample rate, sigma noise multiplier, steps T. One step is the paper's noisy sum of clipped gradients
(its equation of DP optimizers) over a Poisson sample; neighbours differ by adding or removing one sample.

Two accountants, both upper bounds, so the smaller of the two is one as well:

* RDP (Mironov 2017; the paper's): linear in T, cheap, loose by 5 to 20 % at the usual settings.
* PLD (Doroshenko et al. 2022, "connect the dots"): tight, but on a grid and through an FFT. Three faults of a
  plain call are met here: a fixed grid is too coarse for many steps (so it is refined), rounding in the FFT
  makes the result too SMALL when delta is tiny and T large (so delta is reduced by a bound on that rounding),
  and some settings need gigabytes (so the size is predicted first).
"""

import contextlib
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

SMALLEST_DELTA = 1e-12

_TAIL = 1e-15  # the mass that dp-accounting cuts off a composed distribution
# points of the composed distribution; the most costs about 0.5 s and 100 MB
_FIRST_BINS, _MOST_BINS = 5_000, 500_000
_FIRST_GRID, _COARSEST_GRID = 4e-3, 10.0  # of privacy loss
_SETTLED = 0.005  # the grid is halved until epsilon moves by less than this share
# dp-accounting raises an integer to the power T when a distribution has at most 1,000 points: minutes at T =
# 1e8. Composing blocks of at most this many steps avoids it.
_BLOCK = 10_000
# Rounding in fft(p)**T, measured at q = 1 against the closed form: 2e-17 T (T = 1e4) to 6e-17 T (T = 1e6).
_FFT_ROUNDING = 5e-16
# Rounding in log A(alpha) of dp-accounting's RDP; matters only where q is so small that it cancels.
_RDP_ROUNDING = 1e-15
_FEW_ORDERS = (1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0, 256.0, 512.0)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Upper bounds on one figure; None where an accountant can't give one. ``note`` says why, in words."""

    rdp: float | None
    pld: float | None
    note: str = ""

    @property
    def value(self) -> float | None:
        """The smaller bound, None if there is none."""
        return min((bound for bound in (self.pld, self.rdp) if bound is not None), default=None)

    @property
    def accountant(self) -> str:
        """The name of the accountant whose bound ``value`` is: "PLD" or "RDP"."""
        return "PLD" if self.pld is not None and self.pld == self.value else "RDP"


def version() -> str:
    """The version of dp-accounting that the figures come from."""
    from importlib.metadata import version as installed

    return installed("dp-accounting")


@lru_cache(maxsize=4096)
def epsilon_bounds(q: float, sigma: float, steps: int, delta: float, plan: int) -> Bounds:
    """Bounds on epsilon at ``delta`` after ``steps`` of ``plan`` planned steps (the plan chooses the PLD's
    grid).

    One grid for the whole plan keeps epsilon non-decreasing in ``steps``, and makes a curve over steps cheap.
    """
    rdp = _rdp_epsilon(q, sigma, steps, delta)
    grid, note = _grid(q, sigma, plan, delta)
    pld = None if grid is None else _pld_epsilon(q, sigma, steps, delta, grid)
    return Bounds(rdp=rdp, pld=pld, note=note)


@lru_cache(maxsize=4096)
def delta_bounds(q: float, sigma: float, steps: int, epsilon: float, plan: int) -> Bounds:
    """Bounds on delta at ``epsilon``; as :func:`epsilon_bounds`, on the grid that serves delta = 1e-5."""
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    orders, rates = _rdp_curve(q, sigma)
    usable = [(order, steps * rate) for order, rate in zip(orders, rates, strict=True) if rate < math.inf]
    renyi = None
    if usable:
        renyi = float(rdp.compute_delta([o for o, _ in usable], [r for _, r in usable], epsilon)[0])
    grid, note = _grid(q, sigma, plan, 1e-5)
    pld = None
    if grid is not None:
        value = float(_composed(q, sigma, steps, grid).get_delta_for_epsilon(epsilon))
        pld = max(value, 0.0) + _FFT_ROUNDING * steps if math.isfinite(value) else None
    return Bounds(rdp=renyi, pld=pld, note=note)


def quick_epsilon(q: float, sigma: float, steps: int, delta: float) -> float | None:
    """An RDP bound from a few orders: up to 20 % looser, ten times faster; where a search may start."""
    return _rdp_epsilon(q, sigma, steps, delta, _FEW_ORDERS)


def _rdp_epsilon(
    q: float, sigma: float, steps: int, delta: float, at: tuple[float, ...] | None = None
) -> float | None:
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    orders, rates = _rdp_curve(q, sigma, at)
    usable = [(order, steps * rate) for order, rate in zip(orders, rates, strict=True) if rate < math.inf]
    if not usable:
        return None
    epsilon = float(rdp.compute_epsilon([o for o, _ in usable], [r for _, r in usable], delta)[0])
    return epsilon if math.isfinite(epsilon) else None


@lru_cache(maxsize=256)
def _rdp_curve(
    q: float, sigma: float, at: tuple[float, ...] | None = None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Orders (dp-accounting's by default) and ONE step's Renyi divergence at each; inf where it has none."""
    import dp_accounting
    from dp_accounting import rdp

    event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    with _quiet_absl():
        accountant = rdp.RdpAccountant(at, relation).compose(event)
    orders = tuple(float(order) for order in accountant.orders)
    # A negative divergence is rounding, and dp-accounting would answer epsilon = 0 to it.
    rates = tuple(
        max(float(rate), 0.0) + _RDP_ROUNDING / (order - 1) if math.isfinite(rate) else math.inf
        for order, rate in zip(orders, accountant.rdp, strict=True)
    )
    return orders, rates


@lru_cache(maxsize=4096)
def _pld_epsilon(q: float, sigma: float, steps: int, delta: float, grid: float) -> float | None:
    rounding = _FFT_ROUNDING * steps
    if delta <= 2 * rounding:
        return None
    epsilon = float(_composed(q, sigma, steps, grid).get_epsilon_for_delta(delta - rounding))
    return epsilon if math.isfinite(epsilon) and epsilon >= 0 else None


def _composed(q: float, sigma: float, steps: int, grid: float):
    """The distribution of ``steps`` steps, or of up to 0.01 % more: blocks have equal length."""
    one_step = _one_step(q, sigma, grid)
    blocks = -(-steps // _BLOCK)
    block = one_step.self_compose(-(-steps // blocks))
    return block if blocks == 1 else block.self_compose(blocks)


@lru_cache(maxsize=3)  # up to 50 MB each
def _one_step(q: float, sigma: float, grid: float):
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        sigma,
        value_discretization_interval=grid,
        sampling_prob=q,
        neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


@lru_cache(maxsize=1024)
def _grid(q: float, sigma: float, steps: int, delta: float) -> tuple[float | None, str]:
    """The PLD's grid: halved until epsilon settles or the size cap is met. (None, why) where it can't serve."""
    if delta <= 2 * _FFT_ROUNDING * steps:
        return None, f"delta={delta:g} is below what PLD resolves in {steps:,} steps; RDP alone"
    width = _width(q, sigma, steps)
    finest = width / _MOST_BINS
    grid = max(min(_FIRST_GRID, width / _FIRST_BINS), 16 * finest)
    if grid > _COARSEST_GRID:
        return None, "the privacy loss is too wide for the PLD accountant; RDP alone"
    epsilon = _pld_epsilon(q, sigma, steps, delta, grid)
    while epsilon is not None and grid / 2 >= finest:
        finer = _pld_epsilon(q, sigma, steps, delta, grid / 2)
        if finer is None:
            break
        grid, moved, epsilon = grid / 2, abs(epsilon - finer), finer
        if moved <= _SETTLED * finer:
            return grid, ""
    if epsilon is None:
        return None, "the PLD accountant has no finite answer here; RDP alone"
    return grid, "the PLD accountant's grid met its size limit before it settled: a bound, not a tight one"


def _width(q: float, sigma: float, steps: int) -> float:
    """Width of the composed distribution, in privacy loss; inf if RDP can't tell."""
    reach = 9.0  # standard deviations; dp-accounting cuts at exp(-50), a little further out

    def loss(z: float) -> float:
        shift = (z * sigma + 0.5) / sigma**2
        if q == 1.0:
            return shift
        high, low = max(math.log(q) + shift, math.log1p(-q)), min(math.log(q) + shift, math.log1p(-q))
        return high + math.log1p(math.exp(low - high))

    one_step = loss(reach) - loss(-reach)
    tail = _rdp_epsilon(q, sigma, steps, _TAIL)
    if tail is None:
        return math.inf
    # dp-accounting's Chernoff orders stop at 20 / width of one step
    return 2 * max(tail, one_step, one_step * math.log(2 / _TAIL) / 20)


@contextlib.contextmanager
def _quiet_absl() -> Iterator[None]:
    """Hide the warning that an order didn't converge: that order is dropped, which only loosens the bound."""
    logger = logging.getLogger("absl")

    def drop(record: logging.LogRecord) -> bool:
        return "Excluding this order" not in str(record.msg)

    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)
