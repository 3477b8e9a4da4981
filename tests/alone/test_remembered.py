"""A pass that computes with what an earlier one left of its samples is refused; what is only kept, or set anew, isn't."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import groupclip as gc
from groupclip.errors import PrivacyViolation

B = 4


class Memory(nn.Module):
    """A layer, and something of the samples that the model keeps."""

    def __init__(self, way: Callable[[Memory, Tensor], Tensor], slow: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.way, self.slow = way, slow
        self.kept: Tensor | None = None
        self.queue: list[Tensor] = []
        self.named: dict[str, Tensor] = {}
        self.register_buffer("centre", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.slow:
            float(x.detach().numpy().sum())  # so that samples run one at a time
        return self.way(self, self.layer(x))


def attribute(self: Memory, h: Tensor) -> Tensor:
    old, self.kept = self.kept, h.detach()
    return h if old is None else h - old.mean()


def by_a_weight(self: Memory, h: Tensor) -> Tensor:
    old, self.kept = self.kept, h.detach()
    return h if old is None else h + self.layer(old).mean()


def queue(self: Memory, h: Tensor) -> Tensor:
    self.queue.append(h.detach())
    return h - torch.cat(self.queue).mean()


def named(self: Memory, h: Tensor) -> Tensor:
    old = self.named.get("last")
    self.named["last"] = h.detach()
    return h if old is None else h * old.sum()


def centre(self: Memory, h: Tensor) -> Tensor:
    self.centre = 0.9 * self.centre + 0.1 * h.detach()[0]
    return h - self.centre


def detached(self: Memory, h: Tensor) -> Tensor:
    old, self.kept = self.kept, h.detach()
    return h if old is None else h - old.detach().mean()


def kept_alone(self: Memory, h: Tensor) -> Tensor:
    self.kept, self.named["last"] = h.detach(), h.detach()
    return h


def looked_at(self: Memory, h: Tensor) -> Tensor:
    if self.kept is not None and self.kept.shape[-1] != h.shape[-1]:
        raise AssertionError
    self.kept = h.detach()
    return h


def set_anew(self: Memory, h: Tensor) -> Tensor:
    self.kept = torch.zeros(())
    self.kept = self.kept + h.detach().mean()
    return h * self.kept


def train(model: Memory, noise: bool = True) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mechanism = gc.Mechanism(dataset_size=100, expected_batch_size=B, steps=5, noise_multiplier=1.0) if noise else None
    engine = gc.attach(model, optimizer if noise else None, "all-layer", mechanism)
    for _ in range(3):
        engine.backward(model(torch.randn(B, 3)).square().sum(1))
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("slow", [False, True], ids=["together", "one at a time"])
@pytest.mark.parametrize("way", [attribute, by_a_weight, queue, named, centre, detached])
def test_a_memory_of_samples_is_refused(way: Callable[[Memory, Tensor], Tensor], slow: bool) -> None:
    name = {"queue": "queue", "named": "named", "centre": "centre"}.get(way.__name__, "kept")
    with pytest.raises(PrivacyViolation, match=f"computes with '{name}', which an earlier pass left"):
        train(Memory(way, slow))


@pytest.mark.parametrize("slow", [False, True], ids=["together", "one at a time"])
@pytest.mark.parametrize("way", [kept_alone, looked_at, set_anew])
def test_what_no_later_pass_computes_with_is_let_through(way: Callable[[Memory, Tensor], Tensor], slow: bool) -> None:
    train(Memory(way, slow))


def test_without_noise_to_come_nothing_is_refused() -> None:
    """Then nothing is claimed."""
    train(Memory(attribute, False), noise=False)


def test_a_refused_pass_leaves_the_model_as_it_was_and_a_reset_mends_it() -> None:
    model = Memory(attribute, False)
    mechanism = gc.Mechanism(dataset_size=100, expected_batch_size=B, steps=5, noise_multiplier=1.0)
    engine = gc.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "all-layer", mechanism)
    engine.backward(model(torch.randn(B, 3)).square().sum(1))
    held = model.kept
    with pytest.raises(PrivacyViolation, match="computes with 'kept'"):
        model(torch.randn(B, 3))
    assert model.kept is held
    model.kept = None
    engine.discard()
    engine.backward(model(torch.randn(B, 3)).square().sum(1))
