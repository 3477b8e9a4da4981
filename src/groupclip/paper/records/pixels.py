"""Pixels of fewer bits: how they are rounded, how two runs are compared, and the table of docs/records.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ..scaled.summary import table

FILE = "pixels.json"
BITS = (6, 5, 4, 3)


def rounded(pixels: Tensor, bits: int) -> Tensor:
    """Round bytes to so many bits, each to the middle of its interval, as the copy of CIFAR-10 is to 6.

    Raises:
        ValueError: not 1 to 7 bits.
    """
    if not 1 <= bits <= 7:
        raise ValueError(f"bits={bits}: give 1 to 7")
    width = 2 ** (8 - bits)
    return pixels // width * width + width // 2


def compared(right: Mapping[int, Tensor], records: int) -> list[dict[str, Any]]:
    """Compare the held-out images that are right at each number of bits with those at the most bits.

    Args:
        right: bool ``[N]``, by bits; of the same images.

    Returns:
        By bits: accuracy in percent, its difference from the most bits, and the standard error of that difference (paired).
    """
    most, facts = right[max(right)].double(), []
    for bits, found in right.items():
        apart = 100 * (found.double() - most)
        error = apart.std().item() / math.sqrt(len(apart))
        facts.append({
            "bits": bits, "accuracy": 100 * found.double().mean().item(), "difference": apart.mean().item(), "error": error,
            "records": records, "held_out": len(found),
        })  # fmt: skip
    return facts


def rows_of(facts: Sequence[Mapping[str, Any]]) -> str:
    """Return the table."""
    lines = [
        [str(f["bits"]), f"{f['accuracy']:.1f}", f"{f['difference']:+.1f} ± {f['error']:.1f}" if f["error"] else ""]
        for f in facts
    ]
    return table(["bits a colour", "accuracy, %", "difference from 6 bits, points"], lines)
