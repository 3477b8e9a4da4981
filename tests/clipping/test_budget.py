"""What a step adds and releases: allocations, moving thresholds, hardened noise, in a run of the engine.

Noise is measured on pure noise (no samples): 6 standard errors, a false-alarm rate of 2e-9 a group; keys are fixed.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import groupclip as gc
from groupclip.clipping.adaptive import RELEASE, Adaptive
from groupclip.errors import PrivacyViolation
from groupclip.noise.grid import HardenedNoise, grid, rounding
from groupclip.noise.sources import InsecureNoise
from groupclip.privacy.allocation import noise_multiplier_of
from groupclip.privacy.mechanism import Mechanism

PLAN = Mechanism(dataset_size=1_000, expected_batch_size=10, steps=40, noise_multiplier=1.3)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 50))


def attached(model: nn.Module, **arguments) -> tuple[gc.Engine, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return gc.attach(model, optimizer, "layer-wise", PLAN, **{"thresholds": [0.5, 2.0], **arguments}), optimizer


def step(engine: gc.Engine, optimizer: torch.optim.Optimizer, samples: int = 8) -> None:
    optimizer.zero_grad()
    if samples:
        generator = torch.Generator().manual_seed(engine.ledger.steps)
        x, y = torch.randn(samples, 40, generator=generator), torch.randint(50, (samples,), generator=generator)
        engine.backward(F.cross_entropy(engine.model(x), y, reduction="none"))
    optimizer.step()


@pytest.mark.parametrize("allocation", ["equal", "threshold", "dimension", {"0": 3.0, "2": 3.0}])
@pytest.mark.parametrize("source", [InsecureNoise(1), HardenedNoise(bytes(32))], ids=["float", "hardened"])
def test_the_noise_that_is_added_is_the_noise_that_is_stated(allocation, source):
    model = network()
    engine, optimizer = attached(model, allocation=allocation, noise=source)
    stds = engine.noise_stds
    step(engine, optimizer, samples=0)
    for name, layer in (("0", model[0]), ("2", model[2])):
        noise = torch.cat([layer.weight.grad.flatten(), layer.bias.grad]) * 10
        assert abs(float(noise.std()) / stds[name] - 1) < 6 / math.sqrt(2 * len(noise))
    record = engine.record(delta=1e-5)
    assert record.realised_noise_multiplier >= 1.3 * (1 - 1e-9)
    assert list(record.noise_std.values()) == list(stds.values())
    engine.detach()


def test_a_fifth_less_noise_is_told_apart():
    """The twin."""
    model = network()
    engine, optimizer = attached(model, allocation="threshold", noise=InsecureNoise(1))
    step(engine, optimizer, samples=0)
    noise = model[0].weight.grad.flatten() * 10
    assert abs(0.8 * float(noise.std()) / engine.noise_stds["0"] - 1) > 6 / math.sqrt(2 * len(noise))
    engine.detach()


def test_one_number_for_noise_only_where_it_is_one():
    engine, _ = attached(network(), allocation="threshold")
    with pytest.raises(ValueError, match=r"different noise: ask for engine\.noise_stds"):
        _ = engine.noise_std
    engine.detach()


def test_too_little_noise_is_refused_and_nothing_is_attached():
    model = network()
    with pytest.raises(ValueError, match=r"amounts to noise_multiplier=.*, the plan says 1\.3"):
        attached(model, allocation={"0": 1.0, "2": 1.0})
    assert type(model[0].weight) is nn.Parameter


def test_thresholds_that_move():
    engine, optimizer = attached(network(), thresholds=Adaptive(start=[1e-3, 1e3], rate=0.5), allocation="threshold")
    sigma = PLAN.noise_multiplier
    for _ in range(30):
        before = dict(engine.thresholds)
        assert engine.noise_stds == pytest.approx(
            {g: sigma / math.sqrt(0.99) * math.sqrt(2) * bound for g, bound in before.items()}
        )
        step(engine, optimizer)
        assert dict(engine.thresholds) != before
        assert [group.threshold for group in engine._groups] == list(engine.thresholds.values())
    record = engine.record(delta=1e-5, sampling_vouched_by_user=True)
    assert record.realised_noise_multiplier == pytest.approx(sigma, rel=1e-9)
    assert list(record.other_releases) == [RELEASE]
    assert f"Every step also released the following, paid for in the same figure: {RELEASE}" in record.text()
    assert record.spent == PLAN.spent(delta=1e-5, steps=30)  # the price is in the plan
    engine.detach()


def test_a_sample_is_clipped_by_the_thresholds_of_its_step():
    engine, optimizer = attached(network(), thresholds=Adaptive(start=[0.5, 2.0], rate=2.0), clip="flat-normalised")
    for _ in range(3):
        bounds = dict(engine.thresholds)
        optimizer.zero_grad()
        engine.backward(F.cross_entropy(engine.model(torch.randn(1, 40)), torch.tensor([3]), reduction="none"))
        for name, layer in (("0", engine.model[0]), ("2", engine.model[2])):
            norm = math.hypot(float(layer.weight.grad.norm()), float(layer.bias.grad.norm()))
            assert norm == pytest.approx(bounds[name], rel=1e-4)
        optimizer.step()
    engine.detach()


def test_a_resumed_run_goes_on_with_its_thresholds():
    facts = Adaptive(start=[0.5, 2.0])
    engine, optimizer = attached(network(), thresholds=facts)
    step(engine, optimizer)
    saved = engine.state_dict()
    engine.detach()
    assert "counts" not in str(saved)  # un-noised
    other, _ = attached(network(), thresholds=facts)
    other.load_state_dict(saved)
    assert dict(other.thresholds) == saved["thresholds"] != {"0": 0.5, "2": 2.0}
    assert [group.threshold for group in other._groups] == list(saved["thresholds"].values())
    other.detach()
    fixed, _ = attached(network())
    with pytest.raises(PrivacyViolation, match="other thresholds than this engine"):
        fixed.load_state_dict(saved)
    fixed.detach()


def test_a_discarded_batch_moves_no_threshold():
    noise = [InsecureNoise(7), InsecureNoise(7)]
    moved = []
    for source, spoilt in zip(noise, (False, True), strict=True):
        engine, optimizer = attached(network(), thresholds=Adaptive(start=[0.5, 2.0]), noise=source)
        if spoilt:
            engine.backward(
                F.cross_entropy(engine.model(torch.randn(99, 40)), torch.zeros(99, dtype=torch.long), reduction="none")
            )
            engine.discard()
        step(engine, optimizer, samples=0)
        moved.append(dict(engine.thresholds))
        engine.detach()
    assert moved[0] == moved[1]


def test_fixed_noise_beside_moving_thresholds_is_refused():
    with pytest.raises(ValueError, match="fixed noise while the thresholds move"):
        attached(network(), thresholds=Adaptive(), allocation={"0": 9.0, "2": 9.0})


def test_a_pass_that_failed_counts_nothing():
    """Its samples may come again; counted twice, one could move a count by 1, and the noise is made for 1/2."""

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("out of memory")

    model = network()
    engine, _ = attached(model, thresholds=Adaptive(start=[0.5, 2.0]))
    x = torch.randn(6, 40)
    with engine.forward_on(x):
        out = model[2](Fails.apply(model[1](model[0](x))))  # the last group is clipped, the first never
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.backward(out.square().sum(1))
    assert engine._amounts.counted() == {"0": 0.0, "2": 0.0}
    engine.backward(F.cross_entropy(model(x), torch.arange(6), reduction="none"))
    assert all(abs(count) <= 3.0 for count in engine._amounts.counted().values())
    assert engine._amounts.counted()["2"] != 0
    engine.detach()


def test_moving_thresholds_need_passes_of_the_engine():
    with pytest.raises(ValueError, match="Adaptive thresholds with loss_reduction='mean'"):
        attached(network(), thresholds=Adaptive(), loss_reduction="mean")


def test_moving_thresholds_need_noise():
    with pytest.raises(ValueError, match="Adaptive thresholds without noise"):
        gc.attach(network(), None, "layer-wise", None, thresholds=Adaptive())


def test_hardened_steps_lie_on_the_grid_and_pay_for_it():
    model = network().double()
    plan = Mechanism(dataset_size=1_000, expected_batch_size=8, steps=2, noise_multiplier=1.3)  # dividing by 8 is exact
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for source, on_grid in ((HardenedNoise(), True), (InsecureNoise(1), False)):  # the twin: plain noise isn't on it
        engine = gc.attach(model, optimizer, "layer-wise", plan, thresholds=[0.5, 2.0], noise=source)
        unit = grid(engine.noise_std) / 8
        engine.backward(F.cross_entropy(model(torch.randn(5, 40).double()), torch.arange(5), reduction="none"))
        optimizer.step()
        units = torch.cat([p.grad.flatten() / unit for p in model.parameters()])
        assert torch.equal(units, units.round()) == on_grid
        std, record = engine.noise_std, engine.record(delta=1e-5)
        assert record.to_dict()["hardened_against_floating_point_attacks"] == on_grid
        assert ("The noise is exact, on a grid" in record.text()) == on_grid
        assert (std > 1.3 * math.hypot(0.5, 2.0) * (1 + 1e-6)) == on_grid  # it pays
        if on_grid:
            coordinates = sum(p.numel() for p in model.parameters())
            found = noise_multiplier_of(engine.noise_stds, engine.thresholds, rounding=rounding(coordinates))
            assert found == pytest.approx(1.3)
        engine.detach()
