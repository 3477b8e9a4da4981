"""Steps that would not be private are refused, and a backward pass that fails half-way leaves nothing half-done."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from check_attached import ENTRY, attached, numbers, plan, same
from check_engine import gradients
from groupclip.errors import BudgetExceeded, CoverageError, GroupClipError, PrivacyViolation


@pytest.mark.parametrize("call", [lambda o, c: o.step(c), lambda o, c: o.step(closure=c)])
def test_step_with_a_closure(call: Callable[[torch.optim.Optimizer, Callable[[], float]], None]) -> None:
    model, optimizer, engine = attached()
    before = numbers(model)
    ran = []

    def closure() -> float:
        ran.append(1)
        return 0.0

    with pytest.raises(
        PrivacyViolation, match=r"with a closure: .* without noise\. Call engine\.backward first and then"
    ):
        call(optimizer, closure)
    assert not ran and same(model, before)
    assert engine.ledger is not None and engine.ledger.steps == 0
    optimizer.step(None)
    assert engine.ledger.steps == 1


def test_steps_past_the_plan() -> None:
    model, optimizer, engine = attached(mechanism=plan(steps=2))
    for _ in range(2):
        engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
        optimizer.step()
        optimizer.zero_grad()
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    before, clipped = numbers(model), gradients(model)
    with pytest.raises(BudgetExceeded, match=r"all 2 planned steps are released.*plan more steps in a new Mechanism"):
        optimizer.step()
    assert same(model, before)
    assert all(torch.equal(g, clipped[n]) for n, g in gradients(model).items()), "noise was drawn for a step too many"
    assert engine.ledger is not None and engine.ledger.steps == 2


def test_a_parameter_group_added_after_attach() -> None:
    model, optimizer, engine = attached()
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(7))]})
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    with pytest.raises(CoverageError, match=r"not the model's \(first shape \(7,\)\)"):
        optimizer.step()
    assert engine.ledger is not None and engine.ledger.steps == 0


def test_a_parameter_that_became_trainable_after_attach() -> None:
    model = ENTRY.model()
    model[0].requires_grad_(False)  # type: ignore[index]
    model, _, _ = attached(model)
    model[0].requires_grad_(True)  # type: ignore[index]
    with pytest.raises(
        CoverageError, match=r"'0\.weight' is trainable but in no group: it was unfrozen, added or replaced"
    ):
        ENTRY.losses(model, ENTRY.batch(4))


def test_a_layer_added_after_attach() -> None:
    model, _, _ = attached()
    model.append(nn.Linear(3, 3))  # type: ignore[operator]
    with pytest.raises(CoverageError, match=r"'5\.weight' is trainable but in no group"):
        ENTRY.losses(model, ENTRY.batch(4))


def test_zero_grad_forgotten() -> None:
    model, optimizer, engine = attached()
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    optimizer.step()
    with pytest.raises(
        GroupClipError, match=r"still holds the private gradient of the last step: call optimizer\.zero_grad\(\)"
    ):
        engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    for set_to_none in (False, True):
        optimizer.zero_grad(set_to_none)
        engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
        optimizer.step()
    assert engine.ledger is not None and engine.ledger.steps == 3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_spoilt_after_the_backward_pass(bad: float) -> None:
    model, optimizer, engine = attached()
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    model.get_parameter("2.weight").grad[0, 0] = bad  # type: ignore[index]
    before = numbers(model)
    with pytest.raises(PrivacyViolation, match=r"p\.grad of '2\.weight' isn't what the last.*engine\.discard\(\)"):
        optimizer.step()
    assert same(model, before)
    engine.discard()
    optimizer.step()
    assert all(torch.isfinite(p).all() for p in model.parameters())


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise RuntimeError("out of luck")


class FailsHalfWay(nn.Module):
    """Its upper layer gets its gradient, its lower one doesn't, when ``fails`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.lower, self.upper, self.fails = nn.Linear(5, 4), nn.Linear(4, 3), True

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.lower(x))
        return self.upper(Raises.apply(x) if self.fails else x).square().sum(1)  # pyright: ignore


def test_a_first_micro_batch_that_fails_leaves_no_gradient() -> None:
    model = FailsHalfWay()
    model, optimizer, engine = attached(model)
    x = torch.randn(4, 5)
    with pytest.raises(RuntimeError, match="out of luck"):
        engine.backward(model(x))
    assert all(p.grad is None for p in model.parameters())
    model.fails = False  # type: ignore[assignment]
    engine.backward(model(x))
    got = gradients(model)
    optimizer.step()
    fresh = FailsHalfWay()
    fresh.fails = False
    fresh.load_state_dict(model.state_dict())
    assert all(torch.isfinite(g).all() and g.abs().sum() > 0 for g in got.values())
    assert engine.ledger is not None and engine.ledger.steps == 1


def test_a_later_micro_batch_that_fails_breaks_the_logical_batch() -> None:
    """A half of its samples' gradients is in p.grad: the step must not be made."""
    model = FailsHalfWay()
    model, optimizer, engine = attached(model)
    x = torch.randn(4, 5)
    model.fails = False  # type: ignore[assignment]
    engine.backward(model(x))
    whole = gradients(model)
    model.fails = True  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="out of luck"):
        engine.backward(model(x))
    model.fails = False  # type: ignore[assignment]
    with pytest.raises(
        PrivacyViolation, match=r"an earlier backward pass of this logical batch failed half-way.*discard"
    ):
        engine.backward(model(x))
    with pytest.raises(PrivacyViolation, match=r"failed half-way.*call engine\.discard\(\)"):
        optimizer.step()
    engine.discard()
    assert all(p.grad is None for p in model.parameters())
    engine.backward(model(x))
    for n, g in gradients(model).items():
        torch.testing.assert_close(g, whole[n], rtol=0, atol=0)
    optimizer.step()
