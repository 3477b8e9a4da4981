"""What a step asks of the device about the logical batch: how full it is, and whether its sums are finite."""

from __future__ import annotations

import math

import pytest
import torch

from groupclip.engine.samples import SamplesSeen


@pytest.mark.parametrize(
    ("number", "dtype", "finite"),
    [
        (1.0, torch.float32, True), (3e38, torch.float32, True), (-3e38, torch.float32, True), (65_000.0, torch.float16, True),
        (1e300, torch.float64, True), (math.inf, torch.float32, False), (-math.inf, torch.float32, False),
        (math.nan, torch.float32, False), (math.inf, torch.float16, False), (math.nan, torch.float64, False),
    ],
)  # fmt: skip
def test_finite_sums_are_told_from_others(number: float, dtype: torch.dtype, finite: bool) -> None:
    """The quick question, the length of a sum, overflows for finite numbers: then the numbers themselves are asked."""
    sums = [torch.zeros(3, 2, dtype=dtype), torch.zeros(0), torch.ones(5, dtype=dtype)]
    sums[2][3] = number
    assert SamplesSeen(None).ask(sums, []) == (0, finite, False)


def test_flags_are_read_with_it() -> None:
    flags = [torch.zeros((), dtype=torch.bool), torch.ones((), dtype=torch.bool)]
    assert SamplesSeen(None).ask([torch.ones(2)], flags[:1]) == (0, True, False)
    assert SamplesSeen(None).ask([torch.ones(2)], flags) == (0, True, True)
    assert SamplesSeen(None).ask([], []) == (0, True, False)
