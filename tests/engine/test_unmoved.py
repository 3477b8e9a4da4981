"""Weights move by what has noise: between a step and the next backward pass. In the midst of a logical batch they stand still."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import groupclip as gc
from check_attached import ENTRY, attached, numbers, plan, same
from groupclip.errors import PrivacyViolation

MOVED = r"weights of '.*'.* moved since the first backward pass of this logical batch.*engine\.discard\(\)"


def uphill(model: nn.Module, size: float = 0.05) -> dict[nn.Parameter, Tensor]:
    """The first half of sharpness-aware minimisation. Returns the weights as they were."""
    before = {p: p.detach().clone() for p in model.parameters()}
    with torch.no_grad():
        length = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
        for p in model.parameters():
            if p.grad is not None:
                p.add_(p.grad * size / length)
    return before


def back(before: dict[nn.Parameter, Tensor]) -> None:
    for p, old in before.items():
        p.data = old


MOVES: dict[str, Callable[[nn.Module], object]] = {
    "in place": lambda m: uphill(m),
    "through .data": lambda m: [p.data.add_(0.01 * p.grad) for p in m.parameters()],  # type: ignore[operator]
    "another tensor": lambda m: [setattr(p, "data", p.data + 0.01 * p.grad) for p in m.parameters()],  # type: ignore[operator]
    "one weight": lambda m: m.get_parameter("2.weight").data.sub_(0.01 * m.get_parameter("2.weight").grad),  # type: ignore[operator]
    "loaded": lambda m: m.load_state_dict(ENTRY.model(seed=9).state_dict()),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("clear", [False, True])
def test_a_second_pass_on_other_weights_is_refused(move: str, clear: bool) -> None:
    """Sharpness-aware minimisation around the attached optimizer, with or without the first gradients."""
    model, optimizer, engine = attached()
    batch = ENTRY.batch(8)
    engine.backward(ENTRY.losses(model, batch))
    MOVES[move](model)
    if clear:
        optimizer.zero_grad()
    before = numbers(model)
    with pytest.raises(PrivacyViolation, match=MOVED):
        engine.backward(ENTRY.losses(model, batch))
    assert same(model, before) and engine.ledger is not None and engine.ledger.steps == 0


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("clear", [False, True])
def test_a_step_on_other_weights_is_refused(move: str, clear: bool) -> None:
    """An update by hand before the step releases the sum as it is."""
    model, optimizer, engine = attached()
    engine.backward(ENTRY.losses(model, ENTRY.batch(8)))
    MOVES[move](model)
    if clear:
        optimizer.zero_grad()
    with pytest.raises(PrivacyViolation, match=MOVED):
        optimizer.step()
    assert engine.ledger is not None and engine.ledger.steps == 0


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_in_passes_of_ones_own(reduction: str) -> None:
    model, optimizer, _ = attached(loss_reduction=reduction)
    ENTRY.losses(model, ENTRY.batch(8)).mean().backward()
    before = uphill(model)
    optimizer.zero_grad()
    with pytest.raises(PrivacyViolation, match=MOVED):
        ENTRY.losses(model, ENTRY.batch(8)).mean().backward()
    back(before)
    ENTRY.losses(model, ENTRY.batch(8)).mean().backward()
    optimizer.step()


def test_some_rows_of_a_large_table() -> None:
    """Adversarial training of texts moves the rows of the batch's words."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(5000, 32), nn.Linear(32, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.table(ids).mean(1))

    model, _, engine = attached(Words())
    ids = torch.randint(5000, (8, 64), generator=torch.Generator().manual_seed(0))
    engine.backward(model(ids).square().sum(1))
    grad = model.table.weight.grad  # type: ignore[union-attr]
    assert (grad != 0).any(1).float().mean() < 0.15  # type: ignore[union-attr]
    model.table.weight.data.add_(grad / grad.norm())  # type: ignore[union-attr, operator]
    with pytest.raises(PrivacyViolation, match=r"'table\.weight'"):
        engine.backward(model(ids).square().sum(1))


@torch.no_grad()
def initialised(model: nn.Module) -> None:
    for p in model.parameters():
        nn.init.normal_(p)


def averaged(model: nn.Module) -> None:
    """Evaluate with other weights, and put the model's own back."""
    own = copy.deepcopy(model.state_dict())
    model.load_state_dict(AveragedModel(model).module.state_dict())
    model.load_state_dict(own)


BETWEEN: dict[str, Callable[[nn.Module], object]] = {
    "loaded": MOVES["loaded"],
    "clamped": lambda m: [p.data.clamp_(-0.1, 0.1) for p in m.parameters()],
    "initialised": lambda m: initialised(m),
    "swapped for an average and back": averaged,
    "moved by the private gradient": lambda m: [
        p.data.sub_(0.01 * p.grad) for p in m.parameters() if p.grad is not None
    ],
}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("between", BETWEEN)
def test_between_a_step_and_the_next_pass_weights_move_at_will(between: str, fused: bool) -> None:
    model = ENTRY.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    engine = gc.attach(model, optimizer, "layer-wise", plan())
    for seed in range(3):
        for part in range(2):
            engine.backward(ENTRY.losses(model, ENTRY.batch(4, seed=2 * seed + part)))
        optimizer.step()
        BETWEEN[between](model)
        optimizer.zero_grad()
        BETWEEN[between](model)
    assert engine.ledger is not None and engine.ledger.steps == 3


@pytest.mark.parametrize(
    "change", [lambda m: m.double(), lambda m: m.bfloat16(), averaged], ids=["up", "down", "average"]
)
def test_the_same_weights_in_other_ways(change: Callable[[nn.Module], Any]) -> None:
    """Cast, or swapped and put back, in the midst of a logical batch: they are the weights that they were."""
    model, optimizer, engine = attached()
    engine.backward(ENTRY.losses(model, ENTRY.batch(8)))
    change(model)
    optimizer.step()
    assert engine.ledger is not None and engine.ledger.steps == 1


def test_sharpness_by_the_last_private_gradient() -> None:
    """Uphill by what has noise, and back before the step: nothing of the batch is in it (Park et al. 2023)."""
    model, optimizer, engine = attached()
    for seed in range(3):
        engine.backward(ENTRY.losses(model, ENTRY.batch(8, seed=seed)))
        optimizer.step()
        before = uphill(model)
        optimizer.zero_grad()
        engine.backward(ENTRY.losses(model, ENTRY.batch(8, seed=seed + 10)))
        back(before)
        optimizer.step()
        optimizer.zero_grad()
    assert engine.ledger is not None and engine.ledger.steps == 6


def test_a_batch_that_was_given_up_ends_the_watch() -> None:
    """As after a failure: other weights are loaded, and the run goes on."""
    model, optimizer, engine = attached()
    engine.backward(ENTRY.losses(model, ENTRY.batch(8)))
    engine.discard()
    MOVES["loaded"](model)
    engine.backward(ENTRY.losses(model, ENTRY.batch(8)))
    optimizer.step()


def test_weights_that_are_not_numbers_are_unmoved() -> None:
    model, optimizer, engine = attached()
    engine.backward(ENTRY.losses(model, ENTRY.batch(8)))
    with torch.no_grad():
        model.get_parameter("2.weight").fill_(torch.nan)
    engine.discard()
    engine.backward(ENTRY.losses(model, ENTRY.batch(8)))
    optimizer.step()


def test_without_a_mechanism_weights_are_the_users() -> None:
    model = ENTRY.model()
    engine = gc.attach(model, None, "layer-wise", None)
    engine.backward(ENTRY.losses(model, ENTRY.batch(8)))
    uphill(model)
    engine.backward(ENTRY.losses(model, ENTRY.batch(8)))
