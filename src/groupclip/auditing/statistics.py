"""Lower bounds on privacy from counts of an attacker's errors: what a test may claim, and at most could have claimed.

Nothing here looks for a best threshold: the rule that decides is fixed before the counts are made, else the stated
confidence would be false (of a mechanism that leaks nothing, a third of such audits "find" a leak).
"""

import math
from collections.abc import Callable

import numpy as np

_MOST_EPSILON = 50.0


def most_likely_rate(errors: int, trials: int, doubt: float) -> float:
    """Upper confidence limit of a probability (Clopper and Pearson 1934, one-sided): exceeded with probability ``doubt`` at most.

    Args:
        errors: how often it happened in ``trials`` independent trials.
        doubt: the probability, in (0, 1), with which the limit may be too small.
    """
    from scipy.special import betaincinv

    if errors >= trials:
        return 1.0
    return float(betaincinv(errors + 1, trials - errors, 1 - doubt))


def mu_at_least(false_alarms: int, misses: int, trials: int, confidence: float) -> float:
    """The mu that a mechanism's trade-off curve must allow, if an attacker erred so rarely.

    A mu-GDP mechanism has ``misses >= Phi(Phi^-1(1 - false alarms) - mu)`` for every rule (Dong et al. 2022, eq. 6), so
    ``mu >= Phi^-1(1 - a) + Phi^-1(1 - b)`` at the true error rates a, b, and for their upper limits a fortiori.

    Args:
        false_alarms: of ``trials`` outputs WITHOUT the canary, those that the fixed rule took for outputs with it.
        misses: of ``trials`` outputs WITH it, those taken for outputs without.
        confidence: probability with which the bound holds at least; each rate gets half of the doubt.
    """
    from scipy.special import ndtri

    doubt = (1 - confidence) / 2
    a, b = (most_likely_rate(errors, trials, doubt) for errors in (false_alarms, misses))
    return max(0.0, float(-ndtri(a) - ndtri(b))) if max(a, b) < 1 else 0.0


def epsilon_at_least(false_alarms: int, misses: int, trials: int, delta: float, confidence: float) -> float:
    """As :func:`mu_at_least` for (epsilon, delta): ``P(S) <= e^epsilon Q(S) + delta`` (Kairouz et al. 2015, theorem 2.1).

    Assumes nothing about the shape of the noise, and is far below the truth for it: one rule sees one point of the curve.
    """
    doubt = (1 - confidence) / 2
    a, b = (most_likely_rate(errors, trials, doubt) for errors in (false_alarms, misses))
    found = [math.log((1 - y - delta) / x) for x, y in ((a, b), (b, a)) if 1 - y - delta > 0]
    return max(0.0, *found) if found else 0.0


def guesses_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """How likely an (epsilon, delta)-DP run lets an attacker be right so often.

    Theorem 5.2 of Steinke, Nasr and Jagielski (2023). With W of the binomial law of ``guesses`` trials with probability
    ``e^epsilon / (1 + e^epsilon)``: ``P[right] <= P[W >= right] + 2 m delta max_i P[right > W >= right - i] / i``.

    Args:
        canaries: m, each in or out of the run by its own fair coin.
        guesses: on how many of them the attacker did guess, a number fixed beforehand.
        right: how many of the guesses were right.
    """
    from scipy.special import bdtrc, gammaln

    chance = 1 / (1 + math.exp(-epsilon))
    above = float(bdtrc(right - 1, guesses, chance)) if right > 0 else 1.0
    if delta == 0 or right == 0:
        return min(1.0, above)
    w = np.arange(right - 1, -1, -1, dtype=np.float64)  # right - 1, right - 2, .., 0
    choose = gammaln(guesses + 1) - gammaln(w + 1) - gammaln(guesses - w + 1)
    # log(1 - chance) from epsilon: 1 - chance would lose its digits
    weights = np.exp(
        choose - w * math.log1p(math.exp(-epsilon)) - (guesses - w) * (epsilon + math.log1p(math.exp(-epsilon)))
    )
    slope = float(np.max(np.cumsum(weights) / np.arange(1, right + 1)))
    return min(1.0, above + 2 * canaries * delta * slope)


def guesses_epsilon(canaries: int, guesses: int, right: int, delta: float, confidence: float) -> float:
    """The epsilon that a run must have had at least, at ``delta``, with this confidence: the first that isn't rejected."""
    return _first(
        lambda epsilon: guesses_p_value(canaries, guesses, right, epsilon, delta) > 1 - confidence, _MOST_EPSILON
    )


def _first(accepted: Callable[[float], bool], most: float) -> float:
    """The smallest argument in [0, most] at which ``accepted`` turns true, rounded down."""
    if accepted(0.0):
        return 0.0
    step = 1 / 16
    low = next((k * step for k in range(int(most / step)) if accepted((k + 1) * step)), most - step)
    high = low + step
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if accepted(middle) else (middle, high)
    return low
