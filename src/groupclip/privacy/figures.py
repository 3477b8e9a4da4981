"""A figure of a guarantee as a person reads it. Without torch: ``groupclip epsilon`` needs no more."""

import math

# The usual reading of epsilon: Ponomareva et al., "How to DP-fy ML" (2023), section 5.2
_READINGS = (
    (1.0, "strong"),
    (10.0, "the range that is usual for trained models: useful, and not strong"),
    (50.0, "weak: the formal guarantee alone rules out little"),
    (math.inf, "no meaningful guarantee: do not describe the model as private on the ground of this figure"),
)


def figure(epsilon: float) -> str:
    """Return three significant digits, rounded up: the printed guarantee is never better than the proven one."""
    if epsilon == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    # less a hair, so that 2.0 isn't printed as 2.01
    rounded = math.ceil(epsilon / unit - 1e-9) * unit
    return f"{rounded:,.{max(0, -round(math.log10(unit)))}f}" if rounded >= 1e-3 else f"{rounded:.3g}"


def reading(epsilon: float) -> str:
    """Return what a figure amounts to, in words."""
    return next(words for limit, words in _READINGS if epsilon <= limit)
