"""Bytes that 2 and 3 processes keep and hand to collectives are those of :mod:`groupclip.memory.several`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from groupclip.memory.several import PerRank, Unit, under_ddp, under_fully_shard
from kinds import build
from one_process import results

SIZES = (2, 3)


def as_measured(found: PerRank) -> dict[str, int]:
    return {name: getattr(found, name) for name in ("weights", "gradients", "state", "handed_over")}


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("size", SIZES)
def test_under_ddp(told: Any, size: int, microbatches: int) -> None:
    """A step sends the same, whatever the number of micro-batches."""
    found = under_ddp([p.numel() for p in build("net", torch.float32).parameters()])
    for rank in results(told, size, "case_bytes_ddp"):
        assert rank[microbatches] == as_measured(found)


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("size", SIZES)
def test_under_fully_shard(told: Any, size: int, microbatches: int) -> None:
    model = build("net", torch.float32)
    blocks = [Unit([p.shape for p in block.parameters()]) for block in model.blocks]
    inside = {id(p) for block in model.blocks for p in block.parameters()}
    root = Unit([p.shape for p in model.parameters() if id(p) not in inside], again=False)
    found = as_measured(under_fully_shard([root, *blocks], size, microbatches=microbatches))
    first, *others = [rank[microbatches] for rank in results(told, size, "case_bytes_cut")]
    assert first == found
    for other in others:  # the first rank's parts are the longest; all hand over as much
        assert other["handed_over"] == found["handed_over"]
        assert all(other[name] <= found[name] for name in found)
