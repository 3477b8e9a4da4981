"""What each of several processes keeps and sends, from a model. What processes measure: ``tests/distributed/test_bytes.py``."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import groupclip as gc
from groupclip.memory.ranked import parts_over_ranks, units_of


class Net(nn.Module):
    """Three blocks between a frozen layer and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 2)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(3)])
        self.first.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


BATCH = (torch.zeros(4, 6), torch.zeros(4, dtype=torch.int64))


def test_units_are_the_blocks_and_the_rest() -> None:
    root, *blocks = units_of(Net())
    assert (root.shapes, root.frozen, root.again) == ([(2, 8), (2,)], [(8, 6), (8,)], False)
    assert [(u.shapes, u.again) for u in blocks] == [([(8, 8), (8,)] * 2, True)] * 3


@pytest.mark.parametrize(("optimizer", "moments"), [(None, 0), (torch.optim.SGD, 0), (torch.optim.AdamW, 2)])
def test_the_optimizers_state_counts(optimizer: type | None, moments: int) -> None:
    net = Net()
    held = None if optimizer is None else optimizer([p for p in net.parameters() if p.requires_grad], lr=0.1)
    parts = parts_over_ranks(net, 2, optimizer=held)
    trains = 3 * 144 + 18
    assert parts["DistributedDataParallel"].state == moments * trains * 4
    assert parts["fully_shard"].state == moments * trains // 2 * 4


def test_a_plan_says_it_for_several_processes() -> None:
    net = Net()
    alone = gc.plan(net, BATCH, groups=2)
    found = gc.plan(net, BATCH, groups=2, ranks=4, microbatches=3)
    assert alone.on_ranks is None and "on_ranks" not in alone.to_dict() and "processes" not in alone.table()
    told = found.on_ranks
    assert told is not None and (told.ranks, told.microbatches) == (4, 3)
    assert dict(told.parts) == parts_over_ranks(net, 4, microbatches=3)
    for name, part in told.parts.items():
        assert told.peaks[name] > part.between_passes
        assert found.to_dict()["on_ranks"][name]["sent_bytes_a_step"] == part.handed_over
        assert name in found.table()
    assert "on 4 processes" in found.table()
    # what a rank cuts, it doesn't keep; what it sends grows with its micro-batches
    assert told.parts["fully_shard"].weights < told.parts["DistributedDataParallel"].weights
    assert told.parts["fully_shard"].handed_over == 3 * parts_over_ranks(net, 4)["fully_shard"].handed_over


def test_what_cannot_be_said() -> None:
    net = Net()
    with pytest.raises(ValueError, match="ranks=True must be a whole number, 2 or more"):
        parts_over_ranks(net, True)
    with pytest.raises(ValueError, match="microbatches=0 must be"):
        gc.plan(net, BATCH, groups=2, ranks=2, microbatches=0)
    with pytest.raises(ValueError, match=r"ranks=0 must be a whole number"):
        gc.plan(net, BATCH, groups=2, ranks=0)
    with pytest.raises(ValueError, match=r"microbatches=3 is for what several processes send in a step: give ranks= too"):
        gc.plan(net, BATCH, groups=2, microbatches=3)
    net.head.double()
    with pytest.raises(ValueError, match=r"torch.float32, torch.float64"):
        parts_over_ranks(net, 2)
