"""Times in turns: ratios are to the plain pass of the same round, and passes give the gradients of plain training."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from groupclip.memory import measure
from groupclip.paper.bench import PLAIN, bench, interleaved, one_pass, timing


def test_every_way_has_its_turn_and_rounds_begin_with_another():
    order, ticks = [], itertools.count()
    runs = {way: lambda way=way: order.append(way) for way in "abc"}
    times = interleaved(runs, 4, clock=lambda: float(next(ticks)))
    assert order == [*"abc", *"bca", *"cab", *"abc"]
    assert times == {way: [1.0] * 4 for way in "abc"}


def test_ratios_are_to_the_plain_pass_of_the_round():
    times = {PLAIN: [1.0, 2.0, 4.0], "x": [2.0, 3.0, 5.0]}
    found = timing("x", 3, times, samples=6, peak=7)
    assert (found.ratio, found.least, found.most) == (1.5, 1.25, 2.0)
    assert (found.seconds, found.per_second, found.groups, found.peak_bytes) == (3.0, 2.0, 3, 7)


def test_a_pass_leaves_no_gradient_and_counts_no_lesson():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    made = []

    def losses():
        made.append(1)
        return F.cross_entropy(model(torch.randn(5, 3)), torch.zeros(5, dtype=torch.int64), reduction="none")

    run = one_pass(model, losses, "layer-wise")
    assert len(made) == 1  # before the first round
    run()
    assert len(made) == 2 and all(p.grad is None for p in model.parameters())


def test_bench_measures_what_measure_does():
    model = nn.Sequential(*[nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(4)], nn.Linear(8, 2))
    batch = (torch.randn(6, 8), torch.zeros(6, dtype=torch.int64))
    rows = bench(model, batch, ["all-layer", "uniform:2", "layer-wise"], rounds=2)
    assert [(r.style, r.groups) for r in rows] == [(PLAIN, 0), ("all-layer", 1), ("uniform:2", 2), ("layer-wise", 9)]
    assert rows[0].ratio == 1.0 and all(0 < r.least <= r.ratio <= r.most for r in rows)
    assert rows[1].peak_bytes == measure(model, batch, "all-layer").peak
    (_, planned) = bench(model, batch, ["planned:2"], rounds=1)
    assert planned.groups <= 2 and planned.peak_bytes <= rows[1].peak_bytes
    with pytest.raises(ValueError, match="rounds=0"):
        bench(model, batch, [], rounds=0)
