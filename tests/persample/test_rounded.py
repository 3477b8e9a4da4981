"""Gradients that are products in bfloat16, as bfloat16 autocast has them: against single samples, and within the threshold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import groupclip as gc
from groupclip.persample import base, norms, streamed
from groupclip.persample.dense import Dense
from groupclip.persample.norms import AUTO, GRAM, LAST
from groupclip.persample.outer import Outer
from groupclip.persample.streamed import FormedAgain, Streamed

ULP = 2.0**-8  # of bfloat16


@pytest.fixture(autouse=True)
def multiplies_bfloat16(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """On every processor; and these gradients are large enough for blocks."""
    monkeypatch.setattr(base, "_multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(streamed, "_FEW", 1000)
    monkeypatch.setattr(norms, "_FEW", 1000)
    yield monkeypatch


def operands(samples: int = 5, positions: int = 20, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    a, g = (torch.randn(samples, positions, n, generator=generator).bfloat16() for n in (60, 50))
    return a, g


def true(a: Tensor, g: Tensor) -> Tensor:
    return torch.bmm(g.double().transpose(1, 2), a.double())


@pytest.mark.parametrize("inputs_first", [False, True])
def test_a_gradient_is_its_product_rounded_once(inputs_first: bool) -> None:
    a, g = operands()
    want = true(g, a) if inputs_first else true(a, g)
    found = Outer(a, g, inputs_first).instantiate()
    assert found.dtype == torch.float32 and torch.equal(found, found.bfloat16().float())
    assert float((found - want).abs().max() / want.abs().max()) < ULP
    memory = torch.empty(7, *want.shape[1:])
    again = Outer(a, g, inputs_first).form(memory)
    assert torch.equal(again, found) and again.data_ptr() == memory.data_ptr()


def test_only_where_both_are_bfloat16_and_the_processor_multiplies_it(multiplies_bfloat16: pytest.MonkeyPatch) -> None:
    a, g = operands()
    assert base.rounds_products(a, g)
    assert not any(base.rounds_products(*pair) for pair in ((a, g.float()), (a.half(), g.half()), (a.float(), g.float())))
    assert not base.rounds_products(a.to("meta"), g.to("meta"))
    multiplies_bfloat16.setattr(base, "_multiplies_bfloat16", lambda: False)
    assert not base.rounds_products(a, g) and isinstance(Outer(a, g).settle(AUTO), Outer)
    wide = Outer(a, g).instantiate()
    torch.testing.assert_close(wide, true(a, g).float(), rtol=1e-4, atol=1e-4)


def test_which_form_is_kept() -> None:
    a, g = operands()
    assert type(Outer(a, g).settle(LAST)) is Streamed and type(Outer(a, g).settle(AUTO)) is FormedAgain
    assert type(Outer(a, g).settle(GRAM)) is Outer and type(Outer(a[:, :1], g[:, :1]).settle(AUTO)) is Outer
    assert type(Outer(a.float(), g.float()).settle(AUTO)) is Outer
    assert type(Outer(*operands(positions=200)).settle(AUTO)) is Dense  # of the two, gradients are fewer numbers


@pytest.mark.parametrize("at_once", [1, 2 * 3000, 1 << 21], ids=["one sample a block", "two", "all"])
def test_norms_and_sums_are_those_of_the_rounded_gradients(
    at_once: int, multiplies_bfloat16: pytest.MonkeyPatch
) -> None:
    multiplies_bfloat16.setattr(streamed, "_AT_ONCE", at_once)
    a, g = operands()
    rounded, factors = Outer(a, g).instantiate().double(), torch.rand(5)
    found = Outer(a, g).settle(AUTO)
    assert isinstance(found, FormedAgain)
    torch.testing.assert_close(found.square_norms().double(), rounded.square().sum(dim=(1, 2)), rtol=1e-5, atol=0)
    want = torch.tensordot(factors.double(), rounded, 1)
    torch.testing.assert_close(found.weighted_sum(factors).double(), want, rtol=1e-5, atol=1e-4)
    total = torch.ones(50, 60)
    found.add_to(total, factors)
    torch.testing.assert_close(total.double(), want + 1, rtol=1e-5, atol=1e-4)
    few = found.select(torch.tensor([4, 1]))
    torch.testing.assert_close(few.square_norms(), found.square_norms()[[4, 1]])
    want = torch.tensordot(factors[[4, 1]].double(), rounded[[4, 1]], 1)
    torch.testing.assert_close(few.weighted_sum(factors[[4, 1]]).double(), want, rtol=1e-5, atol=1e-4)
    assert found.num_samples == 5 and few.method == "instantiated twice, a few at once"


class Longer(Outer):
    """Gradients that come out longer whenever they are formed again, as another rounding may have them."""

    times = 1.0

    def narrow(self, start: int, end: int) -> Outer:
        longer = Longer(self.a[start:end], self.g[start:end] * self.times)
        self.times *= 1.5
        return longer


def longest(found: FormedAgain) -> float:
    """How many times its norm of the first time a sample adds to the sum, at most."""
    return max(
        float(found.weighted_sum(torch.eye(found.num_samples)[i]).norm() / found.square_norms()[i].sqrt())
        for i in range(found.num_samples)
    )


def test_the_second_time_no_gradient_is_longer_than_the_first() -> None:
    a, g = operands()
    assert longest(FormedAgain(Longer(a, g), 3000, 3300)) <= 1 + 1e-6


def test_twin_without_it_some_are(multiplies_bfloat16: pytest.MonkeyPatch) -> None:
    multiplies_bfloat16.setattr(FormedAgain, "_weights", Streamed._weights)
    assert longest(FormedAgain(Longer(*operands()), 3000, 3300)) > 1.4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(40, 50), nn.Linear(50, 60)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(x)))


def losses(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return model(x).float().square().flatten(1).mean(dim=1)


@pytest.mark.parametrize(("style", "forms"), [("all-layer", {FormedAgain}), ("layer-wise", {Streamed})])
def test_autocast_equals_single_samples_under_autocast(
    style: str, forms: set[type], multiplies_bfloat16: pytest.MonkeyPatch
) -> None:
    """Torch's own backward pass of each sample, clipped in float64: to the rounding of bfloat16 activations and products."""
    torch.manual_seed(0)
    model, x = Net(), torch.randn(6, 20, 40) * torch.logspace(-1, 1, 6).view(-1, 1, 1)
    groups, clip = gc.partition(model, style), gc.clipping.Abadi()
    want = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in model.named_parameters()}
    for i in range(len(x)):
        grads = dict(zip(want, torch.autograd.grad(losses(model, x[i : i + 1]).sum(), list(model.parameters())), strict=True))
        for group in groups:
            norm = torch.stack([grads[n].double().square().sum() for n in groups[group]]).sum().sqrt()
            for n in groups[group]:
                want[n] += grads[n].double() * min(1.0, 1.0 / float(norm))
    made: set[type] = set()
    settle = Outer.settle

    def settled(self: Outer, method: str):
        found = settle(self, method)
        made.add(type(found))
        return found

    multiplies_bfloat16.setattr(Outer, "settle", settled)
    engine = gc.attach(model, None, groups, None, clip=clip)
    engine.backward(losses(model, x))
    assert made == forms
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.dtype == torch.float32
        assert float((p.grad.double() - want[name]).norm() / want[name].norm()) < 0.02


@pytest.mark.parametrize("style", ["all-layer", "layer-wise"])
def test_no_sample_exceeds_its_threshold(style: str) -> None:
    torch.manual_seed(0)
    model = Net()
    engine = gc.attach(model, None, style, None, clip="flat-normalised")
    x = torch.randn(3, 20, 40)
    with_it, without = [], []
    for sums, rows in ((with_it, [0, 1, 2]), (without, [0, 1])):
        engine.backward(losses(model, x[rows]))
        sums += [p.grad.double().clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
    moved = torch.stack([(a - b).square().sum() for a, b in zip(with_it, without, strict=True)]).sum().sqrt()
    assert 0.98 < float(moved) / sum(r**2 for r in engine.thresholds.values()) ** 0.5 <= 1 + 1e-5
