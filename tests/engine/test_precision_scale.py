"""Loss scales: a constant one in the backward pass, taken out before norms and clipping; GradScaler refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import groupclip as gc
import oracle
from check_attached import ENTRY, attached, numbers, plan, same
from check_engine import ENTRIES, Clipped, case, faults, gradients, members
from groupclip.errors import PrivacyViolation


@pytest.mark.parametrize("scale", [2.0**-10, 3.0, 2.0**16])
@pytest.mark.parametrize("name", ["mlp", "gpt-tied"])
def test_a_loss_scale_changes_nothing_but_the_pass(name: str, scale: float) -> None:
    """Norms, factors and sums are those of the losses themselves: float64 shows it to rounding."""
    want, entry = case(name, "layer-wise", "abadi"), ENTRIES[name]
    model, batch = entry.model(torch.float64), entry.batch(6, torch.float64)
    engine = gc.attach(model, None, want.groups, None, clip="abadi", thresholds=want.thresholds)
    engine.backward(entry.losses(model, batch), loss_scale=scale)
    got = Clipped(gradients(model), engine.unsafe_norms())
    assert faults(got, want.reference, want.groups, want.thresholds, 1e-10) == []


def faint(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Losses whose gradients lie below the smallest number of float16 (6e-8), in part."""
    return ENTRY.losses(model, batch).float() * 1e-7


def test_small_gradients_of_float16_survive_with_a_scale_and_not_without() -> None:
    model, batch = ENTRY.model(torch.float16), ENTRY.batch(6, torch.float16)
    groups = gc.partition(model, "layer-wise")
    want = oracle.clipped_sum(model, lambda m, b: ENTRY.losses(m, b) * 1e-7, batch, members(groups)).norms
    engine = gc.attach(model, None, groups, None, clip="flat-normalised")
    off: dict[float, float] = {}
    for scale in (1.0, 2.0**20):
        engine.backward(faint(model, batch), loss_scale=scale)
        norms = engine.unsafe_norms()
        off[scale] = max(float(((norms[g].double() - want[g]) / want[g]).abs().max()) for g in groups)
        engine.discard()
    assert off[2.0**20] < 0.02
    assert off[1.0] > 0.2


def test_a_sample_that_the_scale_makes_overflow_adds_zero() -> None:
    """And the others add what they always do; the sum is finite, and the step is made and counted."""
    model, optimizer, engine = attached(ENTRY.model(torch.float16), mechanism=plan(sigma=0.0), clip="abadi")
    batch = ENTRY.batch(6, torch.float16)
    heavy = torch.tensor([1.0, 1.0, 1.0, 3000.0, 1.0, 1.0])

    def losses(weights: Tensor) -> Tensor:
        return ENTRY.losses(model, batch).float() * weights

    engine.backward(losses(heavy), loss_scale=1024.0)
    norms = engine.unsafe_norms()
    # the head's gradient, 3e6 times p - y, is out of range for that sample alone
    assert [math.isfinite(n) for n in norms["4"].tolist()] == [True, True, True, False, True, True]
    got = gradients(model)
    engine.discard()
    keep = torch.tensor([0, 1, 2, 4, 5])
    rest = tuple(t[keep] for t in batch)
    engine.backward(ENTRY.losses(model, rest).float(), loss_scale=1024.0)
    for n, g in gradients(model).items():
        torch.testing.assert_close(g, got[n], rtol=2e-3, atol=1e-4)
    engine.discard()
    engine.backward(losses(heavy), loss_scale=1024.0)
    optimizer.step()
    assert engine.ledger is not None and engine.ledger.steps == 1
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan, 1e5])
def test_scales_that_cannot_be(scale: float) -> None:
    model, _, engine = attached(ENTRY.model(torch.float16))
    losses = ENTRY.losses(model, ENTRY.batch(4, torch.float16))
    with pytest.raises(
        ValueError, match=r"must be positive and at most 65504, the largest number of torch\.float16 losses"
    ):
        engine.backward(losses, loss_scale=scale)
    engine.backward(losses, loss_scale=1024)


@pytest.mark.parametrize("scale", [torch.tensor(8.0), "8", True, None])
def test_scales_that_are_no_number(scale: Any) -> None:
    """A tensor would come from a scaler, which looks at the data."""
    model, _, engine = attached()
    with pytest.raises(TypeError, match=r"loss_scale is \w+; it must be a number, fixed before the run"):
        engine.backward(ENTRY.losses(model, ENTRY.batch(4)), loss_scale=scale)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscaled", [False, True])
def test_grad_scaler_is_refused(fused: bool, unscaled: bool) -> None:
    """It divides the sum after it was clipped, and skips steps by gradients without noise; nothing is stepped or spent."""
    model = ENTRY.model()
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    engine = gc.attach(model, optimizer, "layer-wise", plan())
    scaler = torch.amp.GradScaler("cpu")
    engine.backward(scaler.scale(ENTRY.losses(model, ENTRY.batch(4))))  # type: ignore[arg-type]
    if unscaled:
        scaler.unscale_(optimizer)
    before = numbers(model)
    with pytest.raises(PrivacyViolation, match=r"called by a GradScaler.*bfloat16 needs none.*constant loss_scale"):
        scaler.step(optimizer)
    assert same(model, before) and engine.ledger is not None and engine.ledger.steps == 0


def test_a_grad_scaler_that_is_off_is_nothing() -> None:
    """As trainers have it for bfloat16 and float32."""
    model, optimizer, engine = attached()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    engine.backward(scaler.scale(ENTRY.losses(model, ENTRY.batch(4))))  # type: ignore[arg-type]
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert engine.ledger is not None and engine.ledger.steps == 1


def summed(dtype: torch.dtype, threshold: float) -> tuple[nn.Module, torch.optim.Optimizer, gc.Engine]:
    """Eight samples that are alike, each of length ``threshold`` after clipping."""
    model, optimizer, engine = attached(
        ENTRY.model(dtype), clip="flat-normalised", thresholds=[threshold] * 3, mechanism=plan(sigma=0.0)
    )
    batch = tuple(t[:1].repeat_interleave(8, 0) for t in ENTRY.batch(1, dtype))
    engine.backward(ENTRY.losses(model, batch))
    return model, optimizer, engine


def test_a_sum_too_large_for_its_dtype_is_not_released() -> None:
    """Every sample obeys R, and yet float32 can't hold their sum."""
    model, optimizer, engine = summed(torch.float32, 3e38)
    before = numbers(model)
    with pytest.raises(PrivacyViolation, match=r"isn't finite.*too large for its dtype.*smaller threshold or float32"):
        optimizer.step()
    assert same(model, before) and engine.ledger is not None and engine.ledger.steps == 0


def test_a_sum_that_float16_cannot_hold_is_kept_beside_it() -> None:
    """Over the expected batch size it fits again."""
    model, optimizer, engine = summed(torch.float16, 60_000.0)
    assert any(torch.isinf(p.grad).any() for p in model.parameters() if p.grad is not None)
    optimizer.step()
    assert engine.ledger is not None and engine.ledger.steps == 1
    lengths = {group: 0.0 for group in engine.partition.names}
    for name, p in model.named_parameters():
        assert p.grad is not None
        lengths[engine.partition.group_of(name)] += float(p.grad.double().square().sum())
    assert [math.sqrt(square) for square in lengths.values()] == pytest.approx([60_000.0] * 3, rel=0.02)
