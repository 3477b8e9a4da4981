"""Tensors that depend on parameters alone: followed while their way back to the parameter is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
from apart import Runs, drawn, wrong
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


#: In place, by a name that doesn't tell. What comes before has the parameter's own entries.
IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda w: F.relu(w.clone(), inplace=True),
    "leaky_relu": lambda w: F.leaky_relu(w - 0.1, 3.0, inplace=True),
    "a module": lambda w: nn.Hardtanh(-0.2, 0.2, inplace=True)(1 + w),
    "silu of a copy": lambda w: F.silu(w.to(torch.float64, copy=True), inplace=True),
    "a part": lambda w: _part_changed(w.clone()),
    "an overload": lambda w: torch.ops.aten.mul_.Tensor(w.clone(), torch.tensor(3.0, dtype=torch.float64)),
}


def _part_changed(w: Tensor) -> Tensor:
    F.leaky_relu(w[:2], 3.0, inplace=True)
    return w


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("name", IN_PLACE)
def test_changes_in_place_by_any_name_are_refused(name: str, alone: bool) -> None:
    """The gradient's length would be taken from before the change: one sample would move the sum by more than the threshold."""

    def run(m: Any, x: Tensor) -> Tensor:
        return IN_PLACE[name](m.weight) * (torch.from_numpy(x.numpy()) if alone else x)

    model: Any = Runs(run)
    model.weight = nn.Parameter(drawn(4))
    engine = gc.attach(model, None, "all-layer", None)
    with pytest.raises(gc.UnsupportedOperation, match="changes a tensor in place that depends on weight"):
        model(drawn(3, 4))
    engine.detach()


@pytest.mark.parametrize("name", ["shifted", "cast"])
def test_of_a_complex_gradient_the_real_part_is_the_parameters(name: str) -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        made = m.weight + 1j if name == "shifted" else m.weight.to(torch.complex128)
        return (made * torch.complex(x, 2 * x)).abs()

    model: Any = Runs(run)
    model.weight = nn.Parameter(drawn(4))
    assert wrong(model, (drawn(3, 4),)) == []
