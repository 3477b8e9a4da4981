"""Turn epochs into steps."""

import math

from groupclip.privacy.mechanism import MOST_STEPS


def steps_of(epochs: float, size: int, batch: float) -> int:
    """Return steps in which each of ``size`` samples is drawn ``epochs`` times on average; rounded up, at least 1.

    Raises:
        ValueError: more steps than a mechanism may have.
    """
    steps = epochs * size / batch
    if not steps <= MOST_STEPS:
        raise ValueError(f"epochs={epochs:g} means {steps:.3g} steps, more than {MOST_STEPS:,}; use fewer")
    return max(1, math.ceil(round(steps, 9)))
