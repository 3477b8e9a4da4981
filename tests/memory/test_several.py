"""What a rank holds and hands over, by formula. Against what processes measure: ``tests/distributed/test_bytes.py``."""

from __future__ import annotations

import runpy
from pathlib import Path

from groupclip.memory.several import Unit, under_ddp, under_fully_shard


def test_what_is_frozen_and_what_is_half() -> None:
    units = [Unit([], frozen=[(8, 4)]), Unit([(8, 4), (5,)])]
    found = under_fully_shard(units, 2, pass_itemsize=2)
    assert (found.weights, found.gradients, found.state) == ((16 + 16 + 3) * 4, (16 + 3) * 4, 2 * (16 + 3) * 4)
    assert (found.whole, found.largest) == ((32 + 32 + 6) * 2, (32 + 6) * 2)
    assert found.handed_over == 32 * 2 + 2 * 38 * 2 + 38 * 4
    assert under_ddp([10, 5], frozen=7, itemsize=2).handed_over == 2 * 15 * 4
    assert under_ddp([10, 5], frozen=7, itemsize=2).between_passes == 2 * (22 + 15 + 30)


def test_the_table_of_the_page_is_of_these_formulas() -> None:
    root = Path(__file__).parents[2]
    scope = runpy.run_path(str(root / "benchmarks" / "distributed.py"))
    page = (root / "docs" / "distributed.md").read_text(encoding="utf-8")
    assert "\n".join(scope["rows"]()) in page
