"""Lower bounds on privacy from counts of an attacker's errors: what a test may claim, and at most could have claimed.

Nothing here looks for a best threshold: the rule that decides is fixed before the counts are made, else the stated
confidence would be false (of a mechanism that leaks nothing, a third of such audits "find" a leak).
"""

import math


def most_likely_rate(errors: int, trials: int, doubt: float) -> float:
    """Bound a probability from above (Clopper and Pearson 1934, one-sided): it is larger with probability ``doubt`` at most.

    Args:
        errors: how often it happened in ``trials`` independent trials.
        doubt: the probability, in (0, 1), with which the limit may be too small.
    """
    from scipy.special import betaincinv

    if errors >= trials:
        return 1.0
    return float(betaincinv(errors + 1, trials - errors, 1 - doubt))


def mu_at_least(false_alarms: int, misses: int, trials: int, confidence: float) -> float:
    """Return the mu that a mechanism's trade-off curve must allow, if an attacker erred so rarely.

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
    """Bound epsilon as :func:`mu_at_least` does mu: ``P(S) <= e^epsilon Q(S) + delta`` (Kairouz et al. 2015, theorem 2.1).

    Assumes nothing about the shape of the noise, and is far below the truth for it: one rule sees one point of the curve.
    """
    doubt = (1 - confidence) / 2
    a, b = (most_likely_rate(errors, trials, doubt) for errors in (false_alarms, misses))
    found = [math.log((1 - y - delta) / x) for x, y in ((a, b), (b, a)) if 1 - y - delta > 0]
    return max(0.0, *found) if found else 0.0


def noticed_factor(mu: float, trials: int, confidence: float, sure: float = 0.95) -> float:
    """Return how much too small the noise must be for an audit of so many trials to notice, with probability ``sure`` at least.

    Noise too small by a factor f makes the two worlds f mu apart, and the middle rule errs with probability Phi(-f mu / 2) on
    either side. The bound exceeds mu for sure where both counts of errors are at most the k for which :func:`mu_at_least` does.
    """
    from scipy.special import bdtri, ndtr, ndtri

    doubt, claimed = (1 - confidence) / 2, float(ndtr(-mu / 2))
    low, high = -1, trials  # errors that are few enough, and too many
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if most_likely_rate(middle, trials, doubt) < claimed else (low, middle)
    if low < 0:
        return math.inf
    # the error rate at which at most so many errors come up with probability sqrt(sure), in each world
    rate = float(bdtri(low, trials, math.sqrt(sure)))
    return max(1.0, -2 * float(ndtri(rate)) / mu)


def enough_trials(mu: float, factor: float, confidence: float, most: int, sure: float = 0.95) -> int:
    """Return about the fewest trials, ``most`` at most, that notice noise too small by ``factor`` (:func:`noticed_factor`)."""
    low, high = 10, most
    while high > low:
        middle = (low + high) // 2
        low, high = (low, middle) if noticed_factor(mu, middle, confidence, sure) <= factor else (middle + 1, high)
    return high
