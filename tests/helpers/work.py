"""What is done, counted: a clock tells as much of the machine as of the code, these tell of the code alone.

Whatever goes past its limit is stopped there, so that what would never end fails too.
"""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

import pytest
from dp_accounting.pld import common, pld_pmf
from dp_accounting.rdp import rdp_privacy_accountant as rdp

from groupclip.privacy import accounting


class Tally:
    """Adds up, and fails past ``most``."""

    def __init__(self, what: str, most: float) -> None:
        self.what, self.most, self.count = what, most, 0.0

    def add(self, count: float) -> None:
        self.count += count
        assert self.count <= self.most, f"more than {self.most:,.0f} {self.what}"


@contextmanager
def lines_run(module: ModuleType, most: int) -> Iterator[Tally]:
    """Counts the lines of ``module`` that are run, each time that they are."""
    tally = Tally(f"lines of {module.__name__} were run", most)

    def inside(frame: FrameType, event: str, argument: Any) -> Callable:
        if event == "line":
            tally.add(1)
        return inside

    def calls(frame: FrameType, event: str, argument: Any) -> Callable | None:
        return inside if frame.f_code.co_filename == module.__file__ else None

    before = sys.gettrace()
    sys.settrace(calls)
    try:
        yield tally
    finally:
        sys.settrace(before)


@contextmanager
def points_computed(most: float) -> Iterator[Tally]:
    """Counts the points of privacy loss distributions that dp-accounting makes and transforms, the words of the integers that
    it raises to the number of steps, and as a thousand points each the orders at which it works out a Renyi divergence.

    With nothing left over from calls before: the accountants' caches are emptied.
    """
    tally = Tally("points were computed", most)
    for cached in vars(accounting).values():
        if callable(cached) and hasattr(cached, "cache_clear"):
            cached.cache_clear()

    def before(owner: Any, name: str, cost: Callable[..., float]) -> None:
        plain = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            tally.add(cost(*args, **options))
            return plain(*args, **options)

        patches.setattr(owner, name, counted)

    def power(pmf: pld_pmf.SparsePLDPmf, num_times: int, *_: Any, **__: Any) -> float:
        return num_times * math.log2(max(2, pmf.size)) / 64

    def divergences(q: float, noise_multiplier: float, orders: Any) -> float:
        return 1_000.0 * len(orders)

    with pytest.MonkeyPatch.context() as patches:
        before(pld_pmf.DensePLDPmf, "__init__", lambda pmf, grid, lowest, probs, *_, **__: len(probs))
        before(pld_pmf.SparsePLDPmf, "__init__", lambda pmf, probs, *_, **__: len(probs))
        before(pld_pmf.SparsePLDPmf, "self_compose", power)
        before(common.fft, "fft", lambda probs, length: length)
        before(rdp, "_compute_rdp_poisson_subsampled_gaussian", divergences)
        before(rdp, "_compute_rdp_sample_wor_gaussian", divergences)
        yield tally
