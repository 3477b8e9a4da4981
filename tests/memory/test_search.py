"""Plans against the styles that they promise not to be worse than, on chains of layers that are drawn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import groupclip as gc
from groupclip.memory import BudgetTooSmallError, Planner, measure
from groupclip.memory.cost import at_least
from groupclip.memory.search import _members
from groupclip.models import build_model


class Block(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Chain(nn.Module):
    """Layers, or blocks, one after another, at every position of a sample; the mean of them is classified."""

    def __init__(self, first: int, body: list[nn.Module], last: int) -> None:
        super().__init__()
        self.stem, self.body, self.head = nn.Linear(3, first), nn.ModuleList(body), nn.Linear(last, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.body:
            x = layer(x)
        return self.head(x.mean(dim=1))


@st.composite
def chains(draw) -> tuple[nn.Module, Any]:
    """Every norm method is the best somewhere: few and many positions, thin and wide layers, some large enough to be streamed."""
    width = st.sampled_from((4, 24, 64))
    first, body = draw(width), list[nn.Module]()
    last = first
    if draw(st.booleans()):
        body = [Block(first, draw(width)) for _ in range(2)]
    else:
        for _ in range(draw(st.integers(0, 3))):
            after = draw(width)
            body += [nn.Linear(last, after), *[nn.Tanh()] * draw(st.integers(0, 1))]
            last = after
    samples, positions = draw(st.sampled_from((3, 24))), draw(st.sampled_from((1, 6, 48)))
    return Chain(first, body, last), (torch.randn(samples, positions, 3), torch.randint(4, (samples,)))


def styles(model: nn.Module) -> list[gc.Partition]:
    """Of the named styles those that planned groups promise not to be worse than."""
    found = [gc.partition(model, "layer-wise")]
    for style in ("block-wise", *(f"uniform:{m}" for m in range(1, 99))):
        try:
            found.append(gc.partition(model, style))
        except ValueError:
            continue
    return found


def peak_of(planner: Planner, groups: gc.Partition) -> int:
    return planner.static + max(planner.sketched.private(groups).peak, planner._step)


def check_promises(planner: Planner, model: nn.Module) -> None:
    others = [(len(groups), groups.style, peak_of(planner, groups)) for groups in styles(model)]
    most = max(m for m, _, _ in others)
    plans = [planner.least(groups) for groups in range(1, most + 1)]
    peaks = [plan.predicted_peak for plan in plans]
    assert peaks == sorted(peaks, reverse=True)
    for groups, plan in enumerate(plans, 1):
        assert len(plan.partition) <= groups
        for m, style, peak in others:
            assert m > groups or plan.predicted_peak <= peak, (groups, style)
    assert plans[-1].predicted_peak == peak_of(planner, plans[-1].partition)


@given(chains())
@settings(max_examples=15, deadline=None)
def test_no_style_with_as_many_groups_needs_less_than_planned_groups_nor_do_fewer_planned_ones(case) -> None:
    model, batch = case
    check_promises(Planner(model, batch), model)


@given(chains(), st.data())
@settings(max_examples=8, deadline=None)
def test_a_plan_is_measured_as_predicted(case, data) -> None:
    model, batch = case
    plan = Planner(model, batch).least(data.draw(st.integers(1, 5)))
    assert plan.curve == measure(model, batch, plan.partition)


@given(chains(), st.data())
@settings(max_examples=15, deadline=None)
def test_a_memory_takes_the_fewest_groups_whose_least_peak_fits(case, data) -> None:
    planner = Planner(*case)
    least = [planner.least(m).predicted_peak for m in range(1, len(planner.layers) + 1)]
    memory = data.draw(st.sampled_from(least)) - data.draw(st.integers(0, 1))
    fits = [m for m, peak in enumerate(least, 1) if peak <= memory]
    if not fits:
        with pytest.raises(BudgetTooSmallError, match=f"the least is .* \\({least[-1]} bytes\\)"):
            planner.within(memory)
        return
    plan = planner.within(memory)
    assert len(plan.partition) == fits[0]
    assert plan.predicted_peak == peak_of(planner, plan.partition) <= memory
    assert plan.seconds <= planner.least(fits[0]).seconds


@given(chains(), st.data())
@settings(max_examples=8, deadline=None)
def test_no_pass_needs_less_than_its_bound(case, data) -> None:
    """By this bound, candidates are left out without a pass."""
    planner = Planner(*case)
    count = len(planner.layers)
    cuts = data.draw(st.sets(st.integers(1, count - 1)))
    places = planner._places((0, *sorted(cuts)))
    choices = tuple(
        data.draw(st.sampled_from([i for i, o in enumerate(layer.options) if not o.alone or places.count(place) == 1]))
        for layer, place in zip(planner.layers, places, strict=True)
    )
    bound = max(at_least(planner.layers, choices, _members(places, group)) for group in set(places))
    pass_ = planner._plan(places, choices)
    assert 0 < bound <= pass_.curve.peak - planner._batch_bytes
    assert planner._floor <= pass_.predicted_peak


@pytest.mark.parametrize("rounded", [False, True])
def test_transformers_keep_the_promises_too_in_mixed_precision(rounded: bool) -> None:
    """The engine streams the weights of groups of one layer, and in bfloat16 those of others: plans know it, and leave it alone."""
    model = build_model("vit-micro", input_shape=(3, 32, 32), num_classes=10, patch_size=8, seed=0)
    batch = torch.randn(24, 3, 32, 32), torch.randint(10, (24,))

    def losses(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=rounded):
            return F.cross_entropy(model(batch[0]).float(), batch[1], reduction="none")

    planner = Planner(model, batch, loss=losses)
    check_promises(planner, model)
    plan = planner.least()
    measured = measure(model, batch, plan.partition, loss=losses)
    assert plan.curve.peak == pytest.approx(measured.peak, rel=0.02) if rounded else plan.curve == measured


@pytest.mark.parametrize("style", ["layer-wise", "uniform:2"])
def test_what_is_left_to_the_engine_is_what_it_then_does(style: str) -> None:
    """A wide layer in a group by itself has its gradients formed a few at once: no method but auto does that."""
    model = Chain(64, [nn.Linear(64, 64), nn.Linear(64, 64)], 64)
    batch = torch.randn(24, 48, 3), torch.randint(4, (24,))
    planner = Planner(model, batch)
    wide = next(layer for layer in planner.layers if layer.name == "body.1")
    in_others, alone = (wide.options[i] for i in wide.auto)
    assert (alone.method, alone.alone, in_others.alone) == ("auto", True, False)
    groups = gc.partition(model, style)
    plan = planner._plan(*planner._as_in(groups))
    assert ("body.1.weight" in plan.partition.methods) == (style == "uniform:2")
    assert plan.curve == planner.sketched.private(groups) == measure(model, batch, groups)
