"""Models that sort or pack samples, drop layers, or fail on two samples: exact, whatever is tried out beforehand."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from check_attached import attached
from check_engine import inexact


class SortedInside(nn.Module):
    """Sorts its samples, and puts them back."""

    def __init__(self) -> None:
        super().__init__()
        self.i, self.m, self.h = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        order = lengths.argsort(descending=True, stable=True)
        return self.h(torch.tanh(self.m(torch.tanh(self.i(x))[order]))[order.argsort()])


def test_sorted_inside() -> None:
    assert inexact(SortedInside(), (torch.randn(6, 4, 3), torch.tensor([5, 4, 3, 4, 5, 1]))) == []


class Packed(nn.Module):
    """Ragged rows, as many in all as a multiple of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.i, self.h = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        p = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        p = nn.utils.rnn.PackedSequence(torch.tanh(self.i(p.data)), p.batch_sizes, p.sorted_indices, p.unsorted_indices)
        o, _ = nn.utils.rnn.pad_packed_sequence(p, batch_first=True, total_length=x.shape[1])
        return self.h(o)


def test_packed() -> None:
    assert inexact(Packed(), (torch.randn(6, 4, 3), torch.tensor([4, 4, 4, 1, 2, 3]))) == []


class LayerDrop(nn.Module):
    """Drops layers by Python's or numpy's random numbers."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(6))
        self.source = source

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if (random.random() if self.source == "random" else np.random.rand()) < 0.5:
                x = x + torch.tanh(layer(x))
        return x


@pytest.mark.parametrize("source", ["random", "numpy"])
def test_no_random_number_of_others_is_drawn(source: str) -> None:
    def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        random.seed(1)
        np.random.seed(1)
        return model(*batch).square().flatten(1).sum(1)

    assert inexact(LayerDrop(source), (torch.randn(4, 5, 3),), losses) == []


class FailsFirst(nn.Module):
    """Can't run on two samples the first time; later it goes another way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.then = nn.Linear(3, 3), nn.Linear(3, 3)
        self.fails = True

    def forward(self, x: Tensor) -> Tensor:
        if self.fails:
            x = self.first(x)
            if len(x) == 2:
                raise RuntimeError("two samples")
        return self.then(x).square().sum(1)


def test_a_probe_that_fails_leaves_nothing_to_the_next() -> None:
    model, _, engine = attached(FailsFirst())
    x = torch.randn(4, 3)
    engine.backward(model(x))
    model.fails = False
    engine.backward(model(x))
    assert engine.unsafe_norms()["then"].shape == (4,)


class LastState(nn.Module):
    """Returns a recurrent layer's last state, in which the samples are dimension 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[1]


def test_an_empty_batch_that_comes_first_tells_where_the_samples_lie() -> None:
    """Nobody's numbers are tried out then, and the batches after it lie as they do without it."""
    model, _, engine = attached(LastState(), mechanism=None)
    assert model(torch.randn(0, 5, 3)).shape == (1, 0, 4)
    x = torch.randn(4, 5, 3)
    found = model(x)
    engine.detach()
    torch.testing.assert_close(found.detach(), model(x).detach())
