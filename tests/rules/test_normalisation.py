"""Norms of every kind: exact."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import nn

from check_engine import inexact
from check_rules import B, randn

NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layer norm": (lambda: nn.LayerNorm(4), (B, 4)),
    "layer norm, sequence": (lambda: nn.LayerNorm(4), (B, 6, 4)),
    "layer norm, two dimensions": (lambda: nn.LayerNorm((6, 4)), (B, 2, 6, 4)),
    "layer norm, all but the sample": (lambda: nn.LayerNorm((6, 4)), (B, 6, 4)),
    "layer norm without bias": (lambda: nn.LayerNorm(4, bias=False), (B, 6, 4)),
    "layer norm without anything": (lambda: nn.Sequential(nn.LayerNorm(4, elementwise_affine=False), nn.Linear(4, 2)), (B, 4)),
    "rms norm": (lambda: nn.RMSNorm(4), (B, 6, 4)),
    "rms norm, two dimensions": (lambda: nn.RMSNorm((6, 4), eps=1e-3), (B, 2, 6, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (B, 4, 5, 3)),
    "group norm, one group": (lambda: nn.GroupNorm(1, 4), (B, 4, 5)),
    "group norm, vectors": (lambda: nn.GroupNorm(2, 6), (B, 6)),
    "instance norm 1d": (lambda: nn.InstanceNorm1d(4, affine=True), (B, 4, 6)),
    "instance norm 2d": (lambda: nn.InstanceNorm2d(4, affine=True), (B, 4, 3, 4)),
    "instance norm 3d": (lambda: nn.InstanceNorm3d(4, affine=True), (B, 4, 3, 2, 3)),
    "batch norm 1d, fixed": (lambda: nn.BatchNorm1d(4).eval(), (B, 4)),
    "batch norm 2d, fixed": (lambda: nn.BatchNorm2d(4).eval(), (B, 4, 3, 4)),
    "instance norm, fixed": (lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True).eval(), (B, 4, 6)),
}  # fmt: skip


@pytest.mark.parametrize("norm", NORMS)
def test_norms(norm: str) -> None:
    """Followed by a bend, so that the norm's own scale doesn't cancel; between layers, so that inputs have gradients."""
    make, shape = NORMS[norm]
    for first in (True, False):
        front: list[nn.Module] = [] if first else [nn.Linear(shape[-1], shape[-1]), nn.Tanh()]
        assert inexact(nn.Sequential(*front, make(), nn.Tanh()), (randn(*shape),)) == []
