"""How wide the privacy loss of many steps is, roughly: before memory is taken for a grid on which it is computed."""

import math

from groupclip.privacy.sampled_step import Step


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
