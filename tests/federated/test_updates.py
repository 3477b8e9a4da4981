"""A client's update is clipped by group as the loop in float64 clips a sample's gradient, and never adds more than R_m."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import groupclip as gc
import oracle
from groupclip.clipping.functions import ClipFunction, clip_function
from groupclip.federated.updates import clipped_update

MODEL = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2))
SHAPES = {name: p.shape for name, p in MODEL.named_parameters()}
STYLES = ("all-layer", "layer-wise", "param-wise", "uniform:2")


def updates(number: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> list[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(number)
    return [
        {name: (torch.randn(shape, generator=draw) * scale * 3.0**k).to(dtype) for name, shape in SHAPES.items()}
        for k in range(-3, 4)
    ]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("clip", sorted(oracle.CLIP))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_it_is_the_loop_in_float64(style: str, clip: str, dtype: torch.dtype) -> None:
    groups = gc.partition(MODEL, style)
    thresholds = {group: 0.5 + 0.3 * n for n, group in enumerate(groups.names)}
    for update in updates(1, dtype=dtype):
        before = {name: value.clone() for name, value in update.items()}
        found = clipped_update(update, groups, clip_function(clip), thresholds)
        exact = [{name: value.double() for name, value in update.items()}]
        judge = oracle.clipped(exact, SHAPES, dict(groups.groups), clip, thresholds).sums
        for name, value in found.items():
            assert value.dtype == torch.float64
            torch.testing.assert_close(value, judge[name], rtol=1e-12, atol=0)
            assert torch.equal(update[name], before[name])


class Greedy(ClipFunction):
    """A function of the user's own that keeps no bound."""

    name = "greedy"

    def factors(self, norms: torch.Tensor, threshold: float) -> torch.Tensor:
        return torch.full_like(norms, 1e6)


NAMES = ["flat-normalised", "abadi", "global", "automatic", "greedy"]


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30, 1e-160, 1e150, 1e-300])
@pytest.mark.parametrize("clip", ["flat-normalised", "abadi", "global", "automatic", Greedy()], ids=NAMES)
def test_no_group_is_longer_than_its_threshold(scale: float, clip: str | ClipFunction) -> None:
    groups = gc.partition(MODEL, "layer-wise")
    thresholds = dict.fromkeys(groups.names, 0.1)
    for update in updates(2, scale, torch.float64):
        found = clipped_update(update, groups, clip_function(clip), thresholds)
        for group in groups.names:
            length = math.hypot(*torch.cat([found[name].flatten() for name in groups[group]]).tolist())
            assert length <= 0.1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_makes_its_group_zero_and_no_other(bad: float) -> None:
    groups = gc.partition(MODEL, "layer-wise")
    (update, *_) = updates(3)
    update["0.weight"][2, 1] = bad
    found = clipped_update(update, groups, clip_function("abadi"), dict.fromkeys(groups.names, 10.0))
    assert all(torch.equal(found[name], torch.zeros_like(found[name])) for name in ("0.weight", "0.bias"))
    assert found["2.weight"].abs().min() > 0


def test_nothing_is_zero() -> None:
    groups = gc.partition(MODEL, "all-layer")
    nothing = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for clip in oracle.CLIP:
        found = clipped_update(nothing, groups, clip_function(clip), {"all": 1.0})
        assert all(not value.any() for value in found.values())
