"""How wide the privacy loss of many steps is, roughly: before memory is taken for a grid on which it is computed."""

import math

from groupclip.privacy.sampled_step import Step

_ORDERS = (1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0)


def width(step: Step, tail: float, cut: float) -> float:
    """Return width of the composed distribution, in privacy loss.

    Args:
        tail: about how large the privacy loss gets (by RDP).
        cut: the mass that dp-accounting cuts off a composed distribution.
    """
    reach = 9.0  # standard deviations; dp-accounting cuts at exp(-50), a little further out
    # what a truncated batch adds is a replacement: dp-accounting takes it in at half the noise
    doubled = step.adjacency == "replace-one" or step.sampling == "truncated-poisson"
    sigma = step.sigma / 2 if step.sampling == "truncated-poisson" else step.sigma

    def loss(z: float) -> float:
        shift = (z * sigma + 0.5) / sigma**2
        if step.rate == 1.0:
            return shift
        high, low = sorted((math.log(step.rate) + shift, math.log1p(-step.rate)), reverse=True)
        return high + math.log1p(math.exp(low - high))

    one_step = (1 + doubled) * (loss(reach) - loss(-reach))
    # dp-accounting's Chernoff orders stop at 20 / width of one step
    return 2 * max(tail, one_step, one_step * math.log(2 / cut) / 20)


def mixture_tail(step: Step, steps: int, cut: float) -> float:
    """Return about how large the privacy loss of a mixture of Gaussians gets in ``steps`` steps, by Chernoff's bound.

    An estimate: its integrals are sums, over the one neighbour whose loss gets large.
    """
    import numpy as np
    from scipy.special import logsumexp
    from scipy.stats import binom

    present = np.arange(step.samples + 1)
    shares = binom.logpmf(present, step.samples, step.rate)
    found = math.inf
    for order in _ORDERS:
        points = np.linspace(-9 * step.sigma, order * step.samples + 9 * step.sigma, 2_000)
        loss = np.asarray(logsumexp(shares + (np.outer(points, present) - present**2 / 2) / step.sigma**2, axis=1))
        density = -((points / step.sigma) ** 2) / 2 - math.log(step.sigma * math.sqrt(2 * math.pi))
        moment = float(np.asarray(logsumexp(density + order * loss))) + math.log(points[1] - points[0])
        found = min(found, (steps * max(moment, 0.0) - math.log(cut)) / (order - 1))
    return found
