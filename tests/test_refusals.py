"""What would break the guarantee is refused by name: what was found, and how to go on. The list of G11 in one place.

Details of each are in the rooms (``engine/test_step``, ``engine/test_custody``, ``sampling/test_claims`` ..).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import groupclip as gc
from check_attached import ENTRY, attached, plan, train
from groupclip.errors import BudgetExceeded, CoverageError, GroupClipError, PrivacyViolation
from groupclip.noise.sources import InsecureNoise

DATA = TensorDataset(*ENTRY.batch(40))


def losses(model: nn.Module, size: int = 8) -> Tensor:
    return ENTRY.losses(model, ENTRY.batch(size))


def batch_norm() -> None:
    attached(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)))


class Centred(nn.Module):
    """Takes the mean of the batch off every sample: nothing that torch would call a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return x - x.mean(0)


def samples_that_mix() -> None:
    """Sample j is changed, and what sample i gives must not."""
    gc.check(Centred(), lambda model, x: model(x).square().sum(1), (torch.randn(4, 5),), "layer-wise")


def shuffled_loader() -> None:
    gc.poisson_batches(DataLoader(DATA, batch_size=8, shuffle=True), plan())  # type: ignore[arg-type]


def weighted_loader() -> None:
    gc.poisson_batches(DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 40, 40)), plan())  # type: ignore[arg-type]


def stream() -> None:
    gc.poisson_batches(iter(DATA), plan())  # type: ignore[arg-type, call-overload]


def in_no_group() -> None:
    gc.partition(ENTRY.model(), {"0.*": "first", "2.*": "second"})


def in_two_groups() -> None:
    gc.Partition("mapping", (("a", ("0.weight", "0.bias")), ("b", ("0.bias", "2.weight"))), (25, 25))


class Hidden(torch.autograd.Function):
    """A layer with a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.t() @ x


class HasHidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 5))

    def forward(self, x: Tensor) -> Tensor:
        return Hidden.apply(x, self.weight)  # type: ignore[return-value]


def no_rule() -> None:
    model, _, engine = attached(HasHidden())
    engine.backward(model(torch.randn(4, 5)).square().sum(1))


def one_threshold_changed() -> None:
    attached()[2].thresholds["0"] = 1.0  # type: ignore[index]


def thresholds_replaced() -> None:
    attached()[2].thresholds = {"0": 1.0, "2": 1.0, "4": 1.0}


def resumed_with_other_thresholds() -> None:
    attached(thresholds=2.0)[2].load_state_dict(attached()[2].state_dict())


def another_n() -> None:
    gc.poisson_batches(TensorDataset(torch.zeros(39, 5)), plan())


def divided_by_hand() -> None:
    """By the actual batch, or by len(loader): that they are secret shows in the result."""
    model, optimizer, engine = attached()
    engine.backward(losses(model))
    for p in model.parameters():
        assert p.grad is not None
        p.grad /= 8
    optimizer.step()


def reduced_over_the_batch() -> None:
    model, _, _ = attached()
    losses(model).mean().backward()


def accumulated_by_hand() -> None:
    model, optimizer, engine = attached()
    kept = [torch.zeros_like(p) for p in model.parameters()]
    for _ in range(2):
        engine.backward(losses(model))
        for total, p in zip(kept, model.parameters(), strict=True):
            assert p.grad is not None
            total += p.grad
        engine.discard()
    for total, p in zip(kept, model.parameters(), strict=True):
        p.grad = total
    optimizer.step()


def accumulated_onto_noise() -> None:
    model, optimizer, engine = attached()
    for _ in range(2):
        engine.backward(losses(model))
        optimizer.step()


def half_precision_scaler() -> None:
    model, optimizer, engine = attached()
    scaler = torch.amp.GradScaler("cpu")
    engine.backward(scaler.scale(losses(model)))  # type: ignore[arg-type]
    scaler.step(optimizer)


def shuffled_plan() -> None:
    gc.Mechanism(dataset_size=40, expected_batch_size=8, steps=5, noise_multiplier=1.0, sampling="shuffled")


def fixed_size_plan() -> None:
    gc.Mechanism(dataset_size=40, expected_batch_size=8, steps=5, noise_multiplier=1.0, sampling="without-replacement")


def beyond_the_plan() -> None:
    model, optimizer, engine = attached(mechanism=plan(steps=2))
    train(model, optimizer, engine, 2)
    optimizer.step()


def epsilon_beyond_the_plan() -> None:
    plan(steps=2).epsilon(delta=1e-5, steps=3)


def epsilon_of_a_seed() -> None:
    attached(noise=InsecureNoise(1))[2].epsilon(delta=1e-5)


def epsilon_of_the_users_batches() -> None:
    model, optimizer, engine = attached()
    train(model, optimizer, engine, 2)
    engine.epsilon(delta=1e-5)


def epsilon_of_another_samplers_ledger() -> None:
    model, optimizer, engine = attached()
    train(model, optimizer, engine, 2)
    edited = engine.state_dict()
    edited["ledger"]["mechanism"] = {**edited["ledger"]["mechanism"], "expected_batch_size": 4}
    attached()[2].load_state_dict(edited)


def batch_iterated_twice() -> None:
    logical = next(iter(gc.poisson_batches(DATA, plan())))
    for _ in range(2):
        list(logical)


# name -> what is done, the error, what the message says was found, and how it says to go on
REFUSED: dict[str, tuple[Callable[[], None], type[Exception], str, str]] = {
    "BatchNorm": (batch_norm, PrivacyViolation, r"'1' is BatchNorm1d in training mode", "GroupNorm"),
    "operations across samples": (samples_that_mix, PrivacyViolation, "mixes the samples of the batch", "GroupNorm or LayerNorm"),
    "shuffle with Poisson accounting": (shuffled_loader, TypeError, "a DataLoader, whose RandomSampler", r"pass loader\.dataset"),
    "WeightedRandomSampler with Poisson accounting": (
        weighted_loader, TypeError, "a WeightedRandomSampler draws some records more often", "Three ways work.*weigh the losses",
    ),
    "a stream with Poisson accounting": (stream, TypeError, "a stream has no index", "map-style data set"),
    "parameter in no group": (in_no_group, ValueError, r"parameter '4\.weight' is in no group", "add one"),
    "parameter in two groups": (in_two_groups, ValueError, r"'0\.bias' is in two groups, 'a' and 'b'", "keep it in one"),
    "trainable parameter without a rule": (no_rule, CoverageError, "'weight' that was not clipped", "freeze it"),
    "threshold changed after the plan": (
        one_threshold_changed, TypeError, r"threshold of group '0' can't be changed", "attach again",
    ),
    "thresholds replaced after the plan": (
        thresholds_replaced, AttributeError, r"engine\.thresholds can't be changed", "attach again",
    ),
    "thresholds changed by a resume": (
        resumed_with_other_thresholds, PrivacyViolation, "other thresholds", "attach with the same settings",
    ),
    "another n than the plan's": (another_n, ValueError, "holds 39 samples, .* dataset_size=40", "calibrate again"),
    "another normaliser than the plan's": (divided_by_hand, PrivacyViolation, r"p\.grad of '0\.weight'", r"engine\.discard\(\)"),
    "mean over the batch": (reduced_over_the_batch, PrivacyViolation, "reduced loss", "loss_reduction="),
    "gradients accumulated by hand": (accumulated_by_hand, PrivacyViolation, r"p\.grad of '0\.weight'", r"engine\.discard\(\)"),
    "gradients accumulated onto a noisy one": (
        accumulated_onto_noise, GroupClipError, "still holds the private gradient", r"optimizer\.zero_grad\(\)",
    ),
    "autocast with a GradScaler": (half_precision_scaler, PrivacyViolation, "by a GradScaler", "constant loss_scale"),
    "epsilon of shuffled batches": (shuffled_plan, ValueError, "sampling='shuffled' is unknown", "use one of poisson"),
    "epsilon of fixed batches under add-or-remove": (
        fixed_size_plan, ValueError, "can't be accounted", "use adjacency='replace-one'",
    ),
    "steps beyond the plan": (beyond_the_plan, BudgetExceeded, "all 2 planned steps are released", "plan more steps"),
    "epsilon beyond the plan": (epsilon_beyond_the_plan, ValueError, "steps=3 is past the plan of 2", "plan that many steps"),
    "epsilon with noise of a seed": (epsilon_of_a_seed, PrivacyViolation, "comes from a seed", "attach without noise="),
    "epsilon of a run whose sampler was replaced": (
        epsilon_of_the_users_batches, PrivacyViolation, "2 of 2 steps were on batches that groupclip didn't draw",
        "sampling_vouched_by_user=True",
    ),
    "epsilon of another sampler's ledger": (
        epsilon_of_another_samplers_ledger, PrivacyViolation, r"expected_batch_size 4 \(here 8\)", r"Mechanism\.from_dict",
    ),
    "a batch used twice": (batch_iterated_twice, PrivacyViolation, "is iterated twice", "Keep the micro-batches in a list"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    act, error, found, fix = REFUSED[name]
    with pytest.raises(error) as refusal:
        act()
    assert re.search(found, str(refusal.value)), str(refusal.value)
    assert re.search(fix, str(refusal.value)), str(refusal.value)


def test_a_run_whose_sampler_was_replaced_has_an_epsilon_on_somebodys_word_only() -> None:
    """A user's own sampler may be a Poisson sampler, but nobody can see that: it takes a word by name, which is told."""
    model, optimizer, engine = attached()
    for logical in gc.poisson_batches(DATA, plan()):
        for part in logical:
            engine.backward(ENTRY.losses(model, tuple(part)))
        if engine.ledger is not None and engine.ledger.steps == 3:
            engine.backward(losses(model))  # samples that weren't drawn
        optimizer.step()
        optimizer.zero_grad()
        assert engine.ledger is not None
        if engine.ledger.steps < 4:
            assert engine.epsilon(delta=1e-5) > 0
        else:
            with pytest.raises(PrivacyViolation, match=r"1 of \d steps were on batches that groupclip didn't draw"):
                engine.epsilon(delta=1e-5)
    record = engine.record(delta=1e-5)
    assert not record.sampling_is_ours
    assert record.spent is None
    assert record.to_dict()["sampling_used"] == {"groupclip": 5, "user": 1}
    for told in (record.text(), gc.statement.model_card(record)):
        assert "in 1 of 6 steps groupclip didn't draw the batch, or it wasn't taken whole and in turn" in told
        assert "and nobody vouches that the sampling was Poisson" in told
    vouched = engine.record(delta=1e-5, sampling_vouched_by_user=True)
    assert vouched.spent == plan().spent(delta=1e-5) and engine.epsilon(delta=1e-5, sampling_vouched_by_user=True) > 0
    for told in (vouched.text(), gc.statement.model_card(vouched)):
        assert "provided that the batches were Poisson samples" in told
        assert "In 1 of the 6 steps the sampling was the user's own; the figure holds only if" in told
        assert "whoever trained the model vouches for it" in told


def test_noise_is_drawn_in_full_precision_inside_autocast() -> None:
    """So a step inside autocast need not be refused. bfloat16 has 256 values between a power of two and the next."""
    model, optimizer, engine = attached(nn.Sequential(nn.Linear(100, 100)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        engine.backward(model(torch.randn(8, 100)).square().sum(1))
        optimizer.step()
    (noisy, _) = (p.grad for p in model.parameters())
    assert noisy is not None and noisy.dtype == torch.float32
    assert len(noisy.unique()) > 0.99 * noisy.numel() > len(noisy.bfloat16().unique())
