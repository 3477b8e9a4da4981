"""What a rank holds and hands over, by formula and as measured on 2 and 3 processes."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import ranks
from groupclip.memory.several import PerRank, Unit, under_ddp, under_fully_shard
from kinds import build

SIZES = (2, 3)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    return {size: ranks.run(size, "bytes_cases", tmp_path_factory.mktemp(f"bytes{size}")) for size in SIZES}


def as_measured(found: PerRank) -> dict[str, int]:
    return {name: getattr(found, name) for name in ("weights", "gradients", "state", "handed_over")}


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("size", SIZES)
def test_under_ddp(told: Any, size: int, microbatches: int) -> None:
    """A step sends the same, whatever the number of micro-batches."""
    found = under_ddp([p.numel() for p in build("net", torch.float32).parameters()])
    for rank in told[size]:
        assert rank["case_bytes_ddp"][microbatches] == as_measured(found)


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("size", SIZES)
def test_under_fully_shard(told: Any, size: int, microbatches: int) -> None:
    model = build("net", torch.float32)
    blocks = [Unit([p.shape for p in block.parameters()]) for block in model.blocks]
    inside = {id(p) for block in model.blocks for p in block.parameters()}
    root = Unit([p.shape for p in model.parameters() if id(p) not in inside], again=False)
    found = as_measured(under_fully_shard([root, *blocks], size, microbatches=microbatches))
    first, *others = [rank["case_bytes_cut"][microbatches] for rank in told[size]]
    assert first == found
    for other in others:  # the first rank's parts are the longest; all hand over as much
        assert other["handed_over"] == found["handed_over"]
        assert all(other[name] <= found[name] for name in found)


def test_what_is_frozen_and_what_is_half() -> None:
    units = [Unit([(8, 4)], trains=False), Unit([(8, 4), (5,)])]
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
