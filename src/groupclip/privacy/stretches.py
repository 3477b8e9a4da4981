"""Stretches of steps that share correlated noise, and the rounds of the accountants that they amount to.

In one stretch a sample takes part in every b-th step at most, so s steps are ``ceil(s / b)`` rounds. Where the noise is begun anew
(a run that was resumed, whose earlier noise is gone with its key), the next stretch begins: it is composed with those before it, as
another training on the same data would be. So a beginning costs a round at most.
"""

from collections.abc import Sequence
from itertools import pairwise


def rounds_in(begun: Sequence[int], steps: int, bands: int) -> int:
    """Return the rounds of ``steps`` steps in all; ``begun``: how many there had been when each stretch began."""
    borders = [0, *(at for at in begun if 0 < at < steps), steps]
    return sum(-(-(end - start) // bands) for start, end in pairwise(borders))


def last_step(begun: Sequence[int], steps: int, planned: int, bands: int) -> int:
    """Return how many steps in all stay within the rounds of a plan, if the step that follows ``steps`` begins the noise anew.

    Args:
        planned: steps of the plan, whose noise was meant to be begun once.
    """
    left = rounds_in((), planned, bands) - rounds_in(begun, steps, bands)
    return min(planned, steps + max(0, left) * bands)


def begun_at(begun: Sequence[int], steps: int, bands: int, *, anew: bool) -> tuple[int, ...]:
    """Return ``begun`` with the step that follows ``steps`` steps, whose noise is begun ``anew`` or goes on."""
    starts = bands > 1 and (anew or steps == 0) and steps not in begun
    return (*begun, steps) if starts else tuple(begun)


def checked_begun(found: object, steps: int, bands: int) -> tuple[int, ...]:
    """Return what was saved of the beginnings of stretches. ValueError if it doesn't fit so many steps."""
    whole = isinstance(found, list) and all(type(at) is int for at in found)
    rising: list[int] = sorted(set(found)) if whole and isinstance(found, list) else []
    if not whole or rising != found or any(not 0 <= at < steps for at in rising) or (rising and bands == 1):
        raise ValueError(
            f"begun={found!r} must be the steps at which correlated noise was begun, rising, of {steps} steps with {bands} bands"
        )
    return tuple(rising)
