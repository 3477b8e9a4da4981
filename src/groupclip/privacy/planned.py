"""Checks of a plan's fields that depend on each other, and what is filled in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from groupclip.arguments import whole

if TYPE_CHECKING:
    from groupclip.privacy.mechanism import Mechanism

AUTO = "auto"  # bands that are found by calibration
MOST_BANDS = 1024
_CAP = 6.5  # standard deviations above the mean: there truncation costs nothing that can be seen


def cap_of(sampling: str, size: int, batch: float, cap: int | None) -> int | None:
    """Return ``max_batch_size``, checked or filled in."""
    if sampling != "truncated-poisson":
        if cap is not None:
            raise ValueError(
                f"max_batch_size={cap!r} has no meaning with sampling={sampling!r}; use sampling='truncated-poisson', or "
                "leave it out"
            )
        return None
    if cap is None:
        return min(size, math.ceil(batch + _CAP * math.sqrt(batch)))
    cap = whole("max_batch_size", cap, least=1)
    if not batch <= cap <= size:
        raise ValueError(
            f"max_batch_size={cap} must be in [{batch:g}, {size}]: at least the expected batch size, at most dataset_size"
        )
    return cap


def checked_bands(bands: int | str, plan: Mechanism) -> int | str:
    """Return ``bands``, checked against the plan's other fields. ValueError or TypeError, naming the fix, if they don't fit."""
    if isinstance(bands, str):
        if bands != AUTO:
            raise ValueError(f"bands={bands!r} must be a whole number, or {AUTO!r}")
        if plan.noise_multiplier is not None:
            raise ValueError(
                f"bands={AUTO!r} with noise_multiplier={plan.noise_multiplier:g}: bands are found together with the noise; leave "
                "noise_multiplier out and call calibrate(epsilon=, delta=), or give the number of bands"
            )
    else:
        bands = whole("bands", bands, least=1)
        if bands == 1:
            return 1
    if plan.sampling != "poisson":
        raise ValueError(
            f"bands={bands!r} with sampling={plan.sampling!r}: noise that is correlated over steps is accounted for cyclic Poisson "
            "sampling alone; use sampling='poisson', or bands=1"
        )
    if plan.adjacency != "zero-out":
        raise ValueError(
            f"bands={bands!r} with adjacency={plan.adjacency!r}: the data are dealt into parts, whose sizes depend on the number "
            "of samples, so that number has to be public; use adjacency='zero-out', or bands=1"
        )
    if plan.unit == "client":
        raise ValueError(f"bands={bands!r} with unit='client': rounds of clients have independent noise; use bands=1")
    if isinstance(bands, str):
        return bands
    most = most_bands(plan)
    if bands > most:
        raise ValueError(
            f"bands={bands} is more than {most}: a step draws expected_batch_size={plan.expected_batch_size} of the "
            f"dataset_size/bands samples of one part; use at most {most}"
        )
    return bands


def noise_multiplier(mechanism: Mechanism) -> float:
    """Return the noise of a plan. ValueError if it isn't calibrated yet."""
    if mechanism.noise_multiplier is None:
        raise ValueError("the mechanism has no noise_multiplier yet: use mechanism.calibrate(epsilon=.., delta=..)")
    return mechanism.noise_multiplier


def most_bands(plan: Mechanism) -> int:
    """Return the largest number of bands that a plan can have: a part of the data holds a batch."""
    return max(1, min(int(plan.dataset_size // plan.expected_batch_size), MOST_BANDS))
