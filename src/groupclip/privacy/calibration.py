"""The least noise that meets a target epsilon: a search over any decreasing function sigma -> epsilon."""

import math
from collections.abc import Callable

from groupclip.privacy import accounting
from groupclip.privacy.sampled_step import Step

SMALLEST_SIGMA = 0.02  # less noise than this protects nobody, whatever the accountant says
LARGEST_SIGMA = 1e6


def least_for(step: Callable[[float], Step], rounds: int, target: float, delta: float, accountant: str | None) -> float:
    """Return the least noise multiplier found with which ``rounds`` of ``step(sigma)`` spend 0.99 * target to target at ``delta``.

    Raises:
        ValueError: the target can't be met with a noise multiplier between 0.02 and 1e6.
    """

    def guessed(sigma: float) -> float:
        return _or_infinite(accounting.guessed_epsilon(step(sigma), rounds, delta))

    def reported(sigma: float) -> float:
        return _or_infinite(accounting.epsilon_bounds(step(sigma), rounds, delta, rounds).only(accountant).value)

    def rough(sigma: float) -> float:  # settling a grid at every sigma is what takes long
        return _or_infinite(accounting.rough_bounds(step(sigma), rounds, delta).only(accountant).value)

    try:
        start = enough_noise(guessed, target)
    except ValueError:  # RDP of a few orders can't guess so small an epsilon
        start = enough_noise(rough, target)
    near = near_noise(rough, reported, start, target)
    return least_noise(reported, near, target, patience=2)


def enough_noise(quick: Callable[[float], float], target: float) -> float:
    """Return a sigma with quick(sigma) <= target, within 2 % of the least such one.

    ``quick`` is cheap and need not be a bound: :func:`least_noise` starts there and believes only what is reported.
    """
    high = 1.0
    while quick(high) > target:
        high *= 2
        if high > LARGEST_SIGMA:
            raise ValueError(
                f"epsilon={target:g} is out of reach: even noise_multiplier={LARGEST_SIGMA:g} spends more; "
                "ask for a larger epsilon or delta, fewer steps or a smaller batch"
            )
    while high / 2 >= SMALLEST_SIGMA and quick(high / 2) <= target:
        high /= 2
    low = high / 2
    while high > 1.02 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if quick(middle) <= target else (middle, high)
    return high


def near_noise(
    rough: Callable[[float], float], reported: Callable[[float], float], start: float, target: float
) -> float:
    """Return a sigma at which ``reported`` is about ``target``, by a ``rough`` function that follows it and costs less."""
    near = least_noise(rough, start, target)
    found = reported(near)
    if 0 < found < math.inf and not 0.997 <= found / target <= 1:
        # where rough says this, reported says about the target
        aim = 0.9985 * rough(near) * target / found
        near = least_noise(_scale(rough, target / aim), near, target)
    return near


def _scale(function: Callable[[float], float], factor: float) -> Callable[[float], float]:
    return lambda sigma: factor * function(sigma)


def least_noise(reported: Callable[[float], float], start: float, target: float, *, patience: int = 60) -> float:
    """Return a sigma with 0.99 * target <= reported(sigma) <= target.

    Secant steps in log-log, kept inside a bracket that grows from ``start``. Stops at 0.998 * target, for noise costs
    accuracy, or at 0.99 * target after ``patience`` steps.
    """
    high, spent = start, reported(start)
    low, too_much = high, spent
    if 0.998 * target <= spent <= target:
        return high
    factor = 1.02
    while spent > target:
        low, too_much = high, spent
        high, factor = high * factor, min(factor * factor, 2.0)
        if high > LARGEST_SIGMA:
            raise ValueError(
                f"epsilon={target:g} is out of reach: even noise_multiplier={low:.3g} spends {too_much:.4g}; ask for a "
                "larger epsilon or delta, fewer steps or a smaller batch"
            )
        spent = reported(high)
    while too_much <= target:
        high, spent = low, too_much
        low, factor = low / factor, min(factor * factor, 1.5)
        if low < SMALLEST_SIGMA:
            raise ValueError(
                f"epsilon={target:g} is more than this plan can spend: at noise_multiplier={high:.3g} it "
                f"spends {spent:.4g}, and less noise than that is no protection; ask for at most "
                f"epsilon={spent:.4g}"
            )
        too_much = reported(low)
    for taken in range(60):
        if spent >= (0.998 if taken < patience else 0.99) * target:
            break
        share = 0.5
        if spent > 0 and math.isfinite(too_much):
            # aim a little under the target, so that the end which is kept moves
            share = math.log(0.999 * target / spent) / math.log(too_much / spent)
        middle = high * (low / high) ** min(max(share, 0.02), 0.98)
        value = reported(middle)
        low, too_much, high, spent = (low, too_much, middle, value) if value <= target else (middle, value, high, spent)
    if spent < 0.99 * target:
        raise ValueError(
            f"epsilon={target:g} can't be met within 1 %: noise_multiplier={high:.6g} spends {spent:.6g} and "
            f"{low:.6g} spends {too_much:.6g}; pass one of them as noise_multiplier="
        )
    return high


def _or_infinite(bound: float | None) -> float:
    return math.inf if bound is None else bound
