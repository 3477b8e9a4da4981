"""How many bands: the number with which sums of gradients come out with the least noise, by accounting and expected error alone.

More bands cancel more noise, and more of the data is drawn at a time from the parts, which protects less. Which of the two tells
depends on epsilon and on how often each sample comes (docs/correlated-noise.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from groupclip.privacy import toeplitz
from groupclip.privacy.planned import most_bands

if TYPE_CHECKING:
    from groupclip.privacy.mechanism import Mechanism

MOST = 64  # that are found without being asked for: each band but one is a copy of the model's gradient in memory


def prefix_noise(mechanism: Mechanism) -> float:
    """Return the root mean square noise of all sums of the first t gradients of a ``mechanism``, t = 1 .. steps, on a coordinate.

    In units of ``||(R_1 .. R_M)||`` over the expected batch size: what the noise amounts to in plain gradient descent, whose
    weights are such sums. With it plans of one data set and batch size can be compared, whatever their bands.
    """
    column = toeplitz.coefficients(mechanism.steps, mechanism.band_count)
    sigma = mechanism.step.sigma
    return sigma * toeplitz.prefix_error(column, mechanism.steps)


def best_bands(plan: Mechanism, calibrated: Callable[[Mechanism], Mechanism]) -> Mechanism:
    """Return ``plan`` with the bands, of 1, 2, 3, 4, 6, 8, 12 .. 64, and the noise that make :func:`prefix_noise` least.

    The search goes up and stops where a number and the next larger one are no better than the best so far.
    """
    most = min(most_bands(plan), plan.steps, MOST)
    found: list[tuple[float, Mechanism]] = []
    for bands in sorted({1, *(2**k for k in range(1, 7)), *(3 * 2**k for k in range(5))}):
        if bands > most:
            break
        candidate = calibrated(replace(plan, bands=bands))
        found.append((prefix_noise(candidate), candidate))
        if len(found) > 2 and min(noise for noise, _ in found[-2:]) > min(noise for noise, _ in found):
            break
    return min(found, key=lambda each: each[0])[1]
