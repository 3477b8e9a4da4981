"""What right guesses in one run say of (epsilon, delta): a bound that no mechanism exceeds, and that some attain.

The game. Each of m canaries is in the run by its own fair coin. From what is released, an attacker names r canaries and
guesses their coins; r is fixed beforehand. How likely are v or more right guesses, if flipping one coin changes the law of
what is released by (epsilon, delta) at most?

    P[right >= v] <= beta + m delta beta (1 - beta) / (v w(v)),

w the binomial law of r trials with probability e^epsilon / (1 + e^epsilon), beta its probability of v or more.

Proof. (1) Relabel canaries and coins at random, run the attacker, undo the relabelling: the number of right guesses keeps its
law p, and so does (epsilon, delta), a mean of hockey-stick divergences being one at most as large as theirs. Now all outcomes
with c right guesses are equally likely, given the coins. (2) Flip one coin. Of the outcomes with c right guesses those that
have this one right, a share c / m in probability, have c - 1 right guesses afterwards, and (r - c + 1) / m of p(c - 1). So

    sum_c u_c <= m delta,   u_c = [c p(c) - e^epsilon (r - c + 1) p(c - 1)]_+.

(3) c w(c) = e^epsilon (r - c + 1) w(c - 1), so f = p / w rises from c - 1 to c by u_c / (c w(c)) at most. (4) Summation by
parts: P[right >= v] - beta = sum_c (1[c >= v] - beta) w(c) f(c) = sum_j (f(j) - f(j - 1)) k_j with f(0) dropping out, and
k_j = P[W >= max(j, v)] - beta P[W >= j] >= 0. So it is at most m delta max_j k_j / (j w(j)). (5) The binomial law is
log-concave, so P[W < j] / (j w(j)) rises with j and P[W >= j] / (j w(j)) falls: the largest is the one at j = v.

Steinke, Nasr and Jagielski (2023), who invented the game, have another second term in their corollary 5.4; where the bound is
below 1/2, and so where it is of use, theirs is larger (by 1.5 to 30 times in ``tests/auditing``).
"""

import math
from collections.abc import Callable

import numpy as np

_MOST_EPSILON = 50.0


def guesses_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return how likely an (epsilon, delta)-DP run lets an attacker be right so often: the bound above.

    Args:
        canaries: m, each in or out of the run by its own fair coin.
        guesses: r, on how many of them the attacker did guess, a number fixed beforehand.
        right: v, how many of the guesses were right.
    """
    from scipy.special import bdtr, bdtrc

    if right <= 0:
        return 1.0
    chance = 1 / (1 + math.exp(-epsilon))
    above, below = float(bdtrc(right - 1, guesses, chance)), float(bdtr(right - 1, guesses, chance))
    # one tail over w(right), by the ratios of neighbouring probabilities on the side where these fall
    if right > chance * guesses:
        ratios = np.exp(epsilon) * np.arange(guesses - right, 0, -1) / np.arange(right + 1, guesses + 1)
        tail = below * (1.0 + float(np.cumprod(ratios).sum()))
    else:
        ratios = np.exp(-epsilon) * np.arange(right, 0, -1) / np.arange(guesses - right + 1, guesses + 1)
        tail = above * float(np.cumprod(ratios).sum())
    return min(1.0, above + canaries * delta * tail / right)


def guesses_epsilon(canaries: int, guesses: int, right: int, delta: float, confidence: float) -> float:
    """Return the epsilon that a run must have had at least, at ``delta``, with this confidence: the first that isn't rejected."""
    return _first(
        lambda epsilon: guesses_p_value(canaries, guesses, right, epsilon, delta) > 1 - confidence, _MOST_EPSILON
    )


def guessed_share(canaries: int) -> int:
    """r for m canaries where none is given: 20 %, near the best from epsilon 1 to 8, by simulation of a Gaussian run."""
    return max(2, math.floor(0.2 * canaries))


def enough_canaries(epsilon: float, delta: float, confidence: float, most: int) -> int:
    """Return the fewest canaries (``most`` at most) with which all guesses right would show more than ``epsilon``."""
    low, high = 10, most
    while high > low:
        middle = (low + high) // 2
        r = guessed_share(middle)
        shows = guesses_epsilon(middle, r, r, delta, confidence) > epsilon
        low, high = (low, middle) if shows else (middle + 1, high)
    return high


def _first(accepted: Callable[[float], bool], most: float) -> float:
    """Return the smallest argument in [0, most] at which ``accepted`` turns true, rounded down."""
    if accepted(0.0):
        return 0.0
    step = 1 / 16
    low = next((k * step for k in range(int(most / step)) if accepted((k + 1) * step)), most - step)
    high = low + step
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if accepted(middle) else (middle, high)
    return low
