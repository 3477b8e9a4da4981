"""Bytes that 2 and 3 processes keep and hand to collectives are those of :mod:`groupclip.memory.several`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bytes_cases import RUNS
from groupclip.memory.ranked import parts_over_ranks
from groupclip.memory.several import PerRank
from kinds import build
from one_process import results

SIZES = (2, 3)


def as_measured(found: PerRank) -> dict[str, int]:
    return {name: getattr(found, name) for name in ("weights", "gradients", "state", "handed_over")}


def formula(kind: str, size: int, microbatches: int, wrapper: str) -> dict[str, int]:
    """What the formulas say of a model, whose units they find themselves."""
    model = build(kind, torch.float32)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    return as_measured(parts_over_ranks(model, size, optimizer=optimizer, microbatches=microbatches)[wrapper])


@pytest.mark.parametrize(("kind", "microbatches"), RUNS)
@pytest.mark.parametrize("size", SIZES)
def test_under_ddp(told: Any, size: int, kind: str, microbatches: int) -> None:
    """A step sends the same, whatever the number of micro-batches."""
    found = formula(kind, size, microbatches, "DistributedDataParallel")
    assert found["handed_over"] == formula(kind, size, 1, "DistributedDataParallel")["handed_over"]
    for rank in results(told, size, "case_bytes_ddp"):
        assert rank[kind, microbatches] == found


@pytest.mark.parametrize(("kind", "microbatches"), RUNS)
@pytest.mark.parametrize("size", SIZES)
def test_under_fully_shard(told: Any, size: int, kind: str, microbatches: int) -> None:
    found = formula(kind, size, microbatches, "fully_shard")
    first, *others = [rank[kind, microbatches] for rank in results(told, size, "case_bytes_cut")]
    assert first == found
    for other in others:  # the first rank's parts are the longest; all hand over as much
        assert other["handed_over"] == found["handed_over"]
        assert all(other[name] <= found[name] for name in found)
