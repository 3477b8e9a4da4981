"""Activation checkpoints: exact without re-entry, refused with it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import groupclip as gc
import oracle
from check_engine import clipped_by_engine, faults, members
from groupclip.errors import UnsupportedOperation


class Checkpointed(nn.Module):
    """Two segments; ``shared``: the second uses the layer of the first."""

    def __init__(self, reentrant: bool | None, shared: bool = False) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.head = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.reentrant, self.shared = reentrant, shared

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in (self.a, self.a if self.shared else self.b):
            x = self.segment(layer, x)
        return self.head(x).square().sum(1)

    def segment(self, layer: nn.Module, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return torch.tanh(layer(x))
        return checkpoint(lambda x: torch.tanh(layer(x)), x, use_reentrant=self.reentrant)  # pyright: ignore


def checkpointed_faults(reentrant: bool, style: str, shared: bool = False) -> list[str]:
    torch.manual_seed(0)
    plain, model = Checkpointed(None, shared).double(), Checkpointed(reentrant, shared).double()
    model.load_state_dict(plain.state_dict())
    if shared:
        for m in (plain, model):
            m.b.requires_grad_(False)
    batch, groups = (torch.randn(4, 5, dtype=torch.float64),), gc.partition(model, style)
    thresholds = dict.fromkeys(groups, 0.2)
    want = oracle.clipped_sum(plain, lambda m, b: m(*b), batch, members(groups), "abadi", thresholds)
    got = clipped_by_engine(model, lambda m, b: m(*b), batch, groups, "abadi", thresholds)
    return faults(got, want, groups, thresholds, 1e-10)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("style", ["all-layer", "layer-wise", "param-wise"])
def test_checkpoints_without_reentry_are_exact(style: str, shared: bool) -> None:
    assert checkpointed_faults(False, style, shared) == []


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("style", ["all-layer", "layer-wise", "param-wise"])
def test_reentrant_checkpoints_are_refused(style: str, shared: bool) -> None:
    """They run a backward pass of their own, and can't be run on single samples side by side."""
    with pytest.raises(UnsupportedOperation, match="use_reentrant=False"):
        checkpointed_faults(True, style, shared)
