"""Tensors that depend on parameters alone: followed while their way back to the parameter is there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from check_attached import attached
from groupclip.errors import UnsupportedOperation


class Caches(nn.Module):
    """Keeps a tensor that it computed from a parameter once."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.cache, self.head = nn.Parameter(torch.ones(5)), None, nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.cache = 1 + self.weight if self.cache is None else self.cache  # pyright: ignore
        return self.head(x * self.cache).square().sum(1)  # pyright: ignore


def test_a_derived_tensor_kept_from_an_earlier_pass() -> None:
    """Its way back to the parameter is gone: the gradient would be lost, and the parameter never trained."""
    model, _, engine = attached(Caches())
    engine.backward(model(torch.randn(4, 5)))
    assert (model.weight.grad != 0).any()  # type: ignore[operator, union-attr]
    with pytest.raises(
        UnsupportedOperation, match="in an earlier pass is used again after its backward; compute it anew"
    ):
        engine.backward(model(torch.randn(4, 5)))
