"""What a forward pass keeps of its samples in a buffer would be published with the weights, without noise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
from check_attached import plan
from groupclip.errors import PrivacyViolation


class Keeps(nn.Module):
    """A linear layer that does something with a buffer in every pass."""

    def __init__(
        self, keep: Callable[[Tensor, Tensor], Tensor], *, persistent: bool = True, in_place: bool = False
    ) -> None:
        super().__init__()
        self.layer, self.keep, self.in_place = nn.Linear(6, 3), keep, in_place
        self.register_buffer("kept", torch.zeros(6), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            new = self.keep(self.kept, x.detach())
            if self.in_place:
                self.kept.copy_(new)
            else:
                self.kept = new
        return self.layer(x)


def largest(kept: Tensor, x: Tensor) -> Tensor:
    return torch.maximum(kept, x.amax(0))


def last(kept: Tensor, x: Tensor) -> Tensor:
    return x[-1]


def count(kept: Tensor, x: Tensor) -> Tensor:
    return kept + 1


def nothing(kept: Tensor, x: Tensor) -> Tensor:
    return torch.full((6,), torch.nan)


def drawn(kept: Tensor, x: Tensor) -> Tensor:
    return torch.rand(6)


def step(model: nn.Module, mechanism: gc.Mechanism | None) -> None:
    engine = gc.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "all-layer", mechanism)
    try:
        x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
        engine.backward(F.cross_entropy(model(x), y, reduction="none"))
    finally:
        engine.detach()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("keep", [largest, last])
def test_a_buffer_filled_from_samples_is_refused_by_name(keep: Callable[..., Tensor], in_place: bool) -> None:
    model = nn.Sequential(nn.Identity(), Keeps(keep, in_place=in_place))
    with pytest.raises(PrivacyViolation, match=r"fills the buffer '1\.kept' with values that depend.*persistent=False"):
        step(model, plan())
    assert not model[1].kept.any()  # pyright: ignore
    step(model, None)  # clipping alone promises nothing
    model.eval()
    step(model, plan())


@pytest.mark.parametrize("keep", [count, drawn, nothing])
def test_buffers_that_know_nothing_of_samples_are_free(keep: Callable[..., Tensor]) -> None:
    step(Keeps(keep), plan())
    step(Keeps(keep, in_place=True), plan())


def test_a_cache_that_is_not_published_is_free() -> None:
    step(Keeps(last, persistent=False), plan())


def test_torchs_own_observer() -> None:
    from torch.ao.quantization import MovingAverageMinMaxObserver

    with pytest.raises(PrivacyViolation, match=r"buffer '0\.(min|max)_val'"):
        step(nn.Sequential(MovingAverageMinMaxObserver(), nn.Linear(6, 3)), plan())
