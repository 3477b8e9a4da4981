"""Normalisation by statistics of the batch is refused, by fixed statistics it is exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import groupclip as gc
import oracle
from check_attached import attached, facts
from check_engine import clipped_by_engine, faults, members
from groupclip.errors import PrivacyViolation


class HoldsStatistics(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).square().mean((1, 2))


def test_batch_norm_in_training_mode_is_refused_at_attach() -> None:
    model = HoldsStatistics()
    before = facts(model)
    with pytest.raises(PrivacyViolation, match=r"'norm' is BatchNorm1d in training mode.*replace it by GroupNorm"):
        attached(model)
    assert facts(model) == before


def test_batch_norm_without_running_statistics_is_refused_in_eval_mode_too() -> None:
    with pytest.raises(PrivacyViolation, match="batch normalisation with the statistics of the batch mixes samples"):
        attached(HoldsStatistics(track_running_stats=False).eval())


def test_batch_norm_is_refused_when_model_train_is_called() -> None:
    model, _, engine = attached(HoldsStatistics().eval())
    x = torch.randn(4, 2, 5)
    engine.backward(model(x))
    running = model.norm.running_mean.clone()  # type: ignore[union-attr]
    model.train()
    with pytest.raises(PrivacyViolation, match="BatchNorm1d: batch normalisation with the statistics of the batch"):
        model(x)
    assert torch.equal(model.norm.running_mean, running), "the statistics took the batch in"  # type: ignore[union-attr]


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_with_fixed_statistics_is_exact(affine: bool) -> None:
    model = HoldsStatistics(affine=affine).eval().double()
    model.norm.running_mean.normal_(), model.norm.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
    batch = (torch.randn(4, 2, 5, dtype=torch.float64),)
    groups = gc.partition(model, "layer-wise")
    thresholds = dict.fromkeys(groups, 0.3)
    want = oracle.clipped_sum(model, lambda m, b: m(*b), batch, members(groups), "abadi", thresholds)
    got = clipped_by_engine(model, lambda m, b: m(*b), batch, groups, "abadi", thresholds)
    assert faults(got, want, groups, thresholds, 1e-10) == []


@pytest.mark.parametrize("affine", [True, False])
def test_instance_norm_that_tracks_statistics_is_refused(affine: bool) -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 1), nn.InstanceNorm1d(3, affine=affine, track_running_stats=True))
    with pytest.raises(PrivacyViolation, match=r"InstanceNorm.*track_running_stats=True.*statistics of the batch"):
        _, _, engine = attached(model)
        engine.backward(model(torch.randn(4, 2, 5)).square().mean((1, 2)))
