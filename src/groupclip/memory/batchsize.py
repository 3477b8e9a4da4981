"""The largest physical batch that a memory holds."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from .found import BudgetTooSmallError, Plan
from .search import Planner
from .sizes import parse_bytes
from .workload import Loss, default_loss, number_of_samples


def largest_batch(
    model: nn.Module, example_batch: Any, *, memory: str | int, groups: int | None = None, optimizer: Optimizer | None = None,
    loss: Loss = default_loss, bands: int = 1,
) -> Plan:  # fmt: skip
    """Return the plan with the most samples that fits; ``plan.samples`` says how many.

    The peak is nearly affine in B, so a few plans show where it meets the budget; one sample more is known not to fit.

    Args:
        memory: bytes of the whole device. groups: at most so many; any number by default. The rest: of
            :func:`groupclip.memory.plan`.

    Raises:
        BudgetTooSmallError: not even one sample fits.
    """
    budget = parse_bytes(memory)

    def planner(samples: int) -> Planner:
        return Planner(model, example_batch, optimizer, loss, samples, bands=bands)

    peaks: dict[int, int] = {}

    def peak(samples: int) -> int:
        if samples not in peaks:
            peaks[samples] = planner(samples).least(groups).predicted_peak
        return peaks[samples]

    fits, fails, samples = 0, 0, number_of_samples(example_batch)
    while not fails or fails - fits > 1:
        if peak(samples) <= budget:
            fits = samples
        else:
            fails = samples
        samples = _next(fits, fails, peaks, budget)
    while fits > 1:
        try:
            return planner(fits).within(budget, groups)
        except BudgetTooSmallError:
            fits -= 1
    return planner(1).within(budget, groups)  # raises if not even one sample fits, and says what it needs


def _next(fits: int, fails: int, peaks: dict[int, int], budget: int) -> int:
    """Return where to look next: where the line through the last two peaks meets the budget, kept inside what is open."""
    guess = 2 * fits if fits and not fails else (fits + fails) // 2
    if len(peaks) > 1:
        (one, low), (two, high) = list(peaks.items())[-2:]
        if high != low:
            guess = one + int((budget - low) * (two - one) / (high - low))
    if not fails:
        return max(fits + 1, min(guess, 16 * fits))
    return min(max(guess, fits + 1), fails - 1) if fails - fits > 1 else fits
