"""What choosing the best of several runs costs, and how many runs to make so that it costs little.

Publishing the best of K runs, by any score, spends more than one run (Papernot and Steinke, "Hyperparameter tuning with
Renyi differential privacy", ICLR 2022). If K is DRAWN from one of the laws below, kept secret together with the other runs
and their scores, and settings are drawn independently for every run, the price is that of two to three runs, however
many are made on average (theorem 2 for the negative binomial laws, theorem 6 for Poisson). A fixed number of runs has no
such bound: it costs what their composition costs.
"""

import math
import secrets
from dataclasses import replace
from functools import lru_cache

from groupclip.arguments import number, positive
from groupclip.privacy import accounting, calibration
from groupclip.privacy.mechanism import Mechanism
from groupclip.privacy.sampled_step import ACCOUNTANTS
from groupclip.privacy.spent import PrivacySpent, checked_delta

#: name -> shape of the truncated negative binomial; infinite: Poisson
LAWS = {"logarithmic": 0.0, "geometric": 1.0, "poisson": math.inf}

_MOST_WEIGHT = 500.0  # of one inversion: see _weight


def search_cost(
    mechanism: Mechanism, *, delta: float, mean_runs: float, law: str | float = "geometric"
) -> PrivacySpent:
    """Return epsilon of releasing the best of a random number of runs of ``mechanism``, all their steps, by RDP.

    Args:
        delta: at which epsilon is returned.
        mechanism: of each run; they may differ in anything that isn't a fact of the mechanism (learning rate, model,
            clip function), and what they are must be drawn without looking at the data or at other runs.
        mean_runs: the mean of the number of runs, >= 1.
        law: "logarithmic", "geometric" or "poisson", or the shape > 0 of a truncated negative binomial. Smaller shapes cost
            less and vary more. Draw the number with :func:`draw_runs`.

    Raises:
        ValueError: a wrong law or mean, or a mechanism without an RDP bound, on which the theorems rest.
    """
    shape, mean_runs = _law(law), _mean(mean_runs)
    _require_rdp(mechanism)
    single = mechanism.spent(delta=delta)
    epsilon = accounting.search_epsilon(mechanism.step, mechanism.rounds(), single.delta, mean_runs, shape)
    if epsilon is None:
        raise ValueError("no finite bound for this search: the runs have too little noise")
    return PrivacySpent(
        epsilon=epsilon,
        delta=single.delta,
        steps=mechanism.steps,
        accountant="RDP",
        rdp=epsilon,
        note=f"the best of a random number of runs ({law}, {mean_runs:g} on average); one run spends {single.epsilon:.4g}",
    )


def checked_search(
    mean_runs: float, law: str | float, mechanism: Mechanism | None = None
) -> tuple[float, float]:
    """Return mean and shape of the number of runs. ValueError as :func:`search_cost`."""
    if mechanism is not None:
        search_cost(mechanism, delta=1e-5, mean_runs=mean_runs, law=law)
    return _mean(mean_runs), _law(law)


def calibrate_search(
    mechanism: Mechanism, *, epsilon: float, delta: float, mean_runs: float, law: str | float = "geometric"
) -> Mechanism:
    """Find the least noise with which the whole search spends 0.99 * epsilon to epsilon; return the same plan with it.

    Args:
        mechanism: of each run; noise that it has is replaced.
        epsilon, delta: what the whole search may spend.
        mean_runs, law: as of :func:`search_cost`.

    Raises:
        ValueError: as :func:`search_cost` and :meth:`groupclip.Mechanism.calibrate`.
    """
    shape, mean_runs = _law(law), _mean(mean_runs)
    target, delta = positive("epsilon", epsilon), checked_delta(delta)
    _require_rdp(mechanism)

    def cost(sigma: float) -> float:
        step = replace(mechanism, noise_multiplier=sigma).step
        found = accounting.search_epsilon(step, mechanism.rounds(), delta, mean_runs, shape)
        return math.inf if found is None else found

    start = calibration.enough_noise(cost, target)
    return replace(mechanism, noise_multiplier=calibration.least_noise(cost, start, target))


def draw_runs(mean_runs: float, law: str | float = "geometric") -> int:
    """Draw how many runs to make, from the operating system's randomness. Keep the number secret; Poisson may give 0.

    ``mean_runs`` and ``law`` as of :func:`search_cost`; ValueError for wrong ones.

    By inversion: P(K = k) is proportional to (1 - gamma)^k prod_{l<k} (l + shape) / (l + 1) for k >= 1.
    """
    mean, shape = _mean(mean_runs), _law(law)
    source = secrets.SystemRandom()
    parts = math.ceil(_weight(mean, shape) / _MOST_WEIGHT)
    if parts <= 1:
        return _invert(source.random(), mean, shape)
    return sum(_part(source.random(), mean, shape, parts) for _ in range(parts))


def _require_rdp(mechanism: Mechanism) -> None:
    if "RDP" not in ACCOUNTANTS[mechanism.sampling, mechanism.adjacency]:
        raise ValueError(
            f"the cost of a search needs the RDP of a run, and sampling={mechanism.sampling!r} with adjacency="
            f"{mechanism.adjacency!r} has none; use add-or-remove-one or zero-out with Poisson sampling"
        )


def _invert(uniform: float, mean: float, shape: float) -> int:
    """Return the smallest k with P(K <= k) > uniform, where P(K = 0) or what stands for it is above exp(-500)."""
    if shape == math.inf:
        return _part(uniform, mean, shape, 1)
    if mean == 1:
        return 1
    rate = _rate(mean, shape)
    scale = rate if shape == 0 else math.expm1(shape * rate) / shape
    return _walk(uniform, 1, -math.expm1(-rate) / scale, mean, -math.expm1(-rate), shape)


def _part(uniform: float, mean: float, shape: float, parts: int) -> int:
    """Return one of ``parts`` independent numbers whose sum has the law, by inversion.

    A Poisson number is a sum of Poisson numbers, a negative binomial one of such with a part of the shape each. That the
    latter isn't truncated changes nothing where it is split: it is 0 with probability exp(-500) at most.
    """
    if shape == math.inf:
        return _walk(uniform, 0, math.exp(-mean / parts), mean / parts, 0.0, math.inf)
    rate, part = _rate(mean, shape), shape / parts
    return _walk(uniform, 0, math.exp(-part * rate), mean / parts, -math.expm1(-rate), part)


def _walk(uniform: float, first: int, mass: float, mean: float, factor: float, shape: float) -> int:
    """Return the smallest k >= first with P(K <= k) > uniform; P(K = first) is ``mass``."""
    k, left = first, uniform - mass
    # past the mean, masses this small are less than the rounding of what is left
    while left >= 0 and (k < mean or mass > 1e-20):
        mass *= mean / (k + 1) if shape == math.inf else factor * ((k + shape) / (k + 1))
        k, left = k + 1, left - mass
    return k


def _weight(mean: float, shape: float) -> float:
    """Return -log of the law's probability of 0, before truncation: a double ends at 745."""
    return mean if shape == math.inf else shape * _rate(mean, shape)


@lru_cache(maxsize=16)
def _rate(mean: float, shape: float) -> float:
    """Return -log gamma of the truncated negative binomial with this mean, by bisection (Papernot and Steinke, definition 1).

    Its logarithm, because 1 - gamma is all that counts where the shape is large.
    """

    def mean_at(rate: float) -> float:
        if shape == 0:
            return math.expm1(rate) / rate
        return shape * math.expm1(rate) / -math.expm1(-shape * rate)

    low, high = 0.0, 20.0  # there, every shape has a mean above 1e7
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if mean_at(middle) > mean else (middle, high)
    return high


def _law(law: str | float) -> float:
    if isinstance(law, str):
        if law not in LAWS:
            raise ValueError(
                f"law={law!r} is unknown; use one of {', '.join(LAWS)}, or the shape of a negative binomial"
            )
        return LAWS[law]
    shape = number("law", law)
    if shape <= 0:
        raise ValueError(f"law={law!r}: the shape of a truncated negative binomial must be > 0")
    return shape


def _mean(mean_runs: float) -> float:
    mean = number("mean_runs", mean_runs)
    if not 1 <= mean <= 1e6:
        raise ValueError(f"mean_runs={mean_runs!r} must be in [1, 1e6]")
    return mean
