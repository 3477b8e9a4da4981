"""Adam that knows the noise: AdamW where there is none; its second moment has no bias; it follows thresholds that move."""

from __future__ import annotations

import copy
import io
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
from groupclip.engine.noise_aware import NoiseAwareAdam, _by_chance
from groupclip.errors import GroupClipError
from groupclip.noise import InsecureNoise

X = torch.randn(16, 3, generator=torch.Generator().manual_seed(1)).double()
Y = torch.arange(16) % 2


def plan(sigma: float, steps: int = 40) -> gc.Mechanism:
    return gc.Mechanism(dataset_size=64, expected_batch_size=16, steps=steps, noise_multiplier=sigma)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def attached(sigma: float, *, seed: int = 5, thresholds=1.0, **given) -> tuple[nn.Module, NoiseAwareAdam, gc.Engine]:
    model = network()
    optimizer = NoiseAwareAdam(model.parameters(), lr=0.05, **given)
    engine = gc.attach(
        model, optimizer, "layer-wise", plan(sigma), thresholds=thresholds, clip="abadi", noise=InsecureNoise(seed)
    )
    optimizer.follow(engine)
    return model, optimizer, engine


def step(model: nn.Module, optimizer: torch.optim.Optimizer, engine: gc.Engine) -> None:
    engine.backward(F.cross_entropy(model(X), Y, reduction="none"))
    optimizer.step()
    optimizer.zero_grad()


def test_without_noise_it_is_adamw():
    model, optimizer, engine = attached(0.0, betas=(0.8, 0.95), weight_decay=0.1)
    other = network()
    adam = torch.optim.AdamW(other.parameters(), lr=0.05, betas=(0.8, 0.95), weight_decay=0.1)
    theirs = gc.attach(other, adam, "layer-wise", plan(0.0), clip="abadi")
    for _ in range(12):
        step(model, optimizer, engine)
        step(other, adam, theirs)
    engine.detach()
    theirs.detach()
    start = network()
    for p, q, at in zip(model.parameters(), other.parameters(), start.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=0, atol=1e-12) and not torch.allclose(p, at, atol=1e-3)


class Summing(nn.Module):
    """Two vectors whose gradients are the same in every step: 1/100 a coordinate of the wide one, 1/10 of the short one."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.short = nn.Parameter(torch.zeros(4000).double()), nn.Parameter(torch.zeros(2000).double())

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.wide.sum() / 100 + self.short.sum() / 10).unsqueeze(0)


def test_the_second_moment_has_no_bias():
    """z of the mean over coordinates; |z| < 5 fails by chance once in two million. Uncorrected it is thousands."""
    model = Summing()
    optimizer = NoiseAwareAdam(model.parameters(), lr=0.0, betas=(0.9, 0.98))
    groups = {"wide": "wide", "short": "short"}
    engine = gc.attach(
        model, optimizer, groups, plan(1.0, steps=60), clip="abadi", thresholds={"wide": 2.0, "short": 8.0}, allocation="threshold",
        noise=InsecureNoise(11),
    )  # fmt: skip
    optimizer.follow(engine)
    variances = {name: (std / 16) ** 2 for name, std in engine.noise_stds.items()}
    assert variances["short"] > 10 * variances["wide"]
    for _ in range(60):
        engine.backward(model(torch.ones(16, 1).double()).squeeze(1))
        optimizer.step()
        optimizer.zero_grad()
    engine.detach()
    for name, square in (("wide", 1e-4), ("short", 1e-2)):
        param, variance = getattr(model, name), variances[name]
        spread = math.sqrt(2 * variance**2 + 4 * variance * square) * _by_chance(0.98, 60) / math.sqrt(2)
        error = spread / math.sqrt(param.numel())

        def z(estimate: Tensor, square: float = square, error: float = error) -> float:
            return abs(estimate.mean().item() - square) / error

        assert z(optimizer.second_moment(param)) < 5
        assert z(optimizer.state[param]["exp_avg_sq"] / (1 - 0.98**60)) > 100  # as Adam has it
        others = variances["wide" if name == "short" else "short"]
        assert z(optimizer.second_moment(param) + variance - others) > 50  # with the other group's noise


def test_steps_are_those_of_the_formula():
    """Each step from the private gradients as they were released; Adam, which corrects nothing, is elsewhere."""
    model, optimizer, engine = attached(0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1)
    variances = {name: (std / 16) ** 2 for name, std in engine.noise_stds.items()}
    weights = {name: param.detach().clone().as_subclass(Tensor) for name, param in model.named_parameters()}
    plain = {name: weight.clone() for name, weight in weights.items()}
    first, squares, noise = ({name: torch.zeros_like(w) for name, w in weights.items()} for _ in range(3))
    corrected = 0
    for t in range(1, 9):
        engine.backward(F.cross_entropy(model(X), Y, reduction="none"))
        optimizer.step()
        for name, param in model.named_parameters():
            grad, variance = param.grad.as_subclass(Tensor), variances[engine.partition.group_of(name)]
            first[name] = 0.8 * first[name] + 0.2 * grad
            squares[name] = 0.95 * squares[name] + 0.05 * grad**2
            noise[name] = 0.95 * noise[name] + 0.05 * variance
            left = 1 - 0.95**t
            least = variance * math.sqrt(2 * 0.05 / 1.95 * (1 + 0.95**t) / left)
            square = (squares[name] - noise[name]) / left
            corrected += int((square > least).sum())
            for of, divisor in ((weights, square.clamp(min=least)), (plain, squares[name] / left)):
                of[name] *= 1 - 0.05 * 0.1
                of[name] -= 0.05 * first[name] / (1 - 0.8**t) / (divisor.sqrt() + 1e-3)
            assert torch.allclose(param.detach(), weights[name], rtol=0, atol=1e-10)
            assert not torch.allclose(param.detach(), plain[name], rtol=0, atol=1e-4)
        optimizer.zero_grad()
    engine.detach()
    coordinates = 8 * sum(weight.numel() for weight in weights.values())
    assert 0.2 * coordinates < corrected < 0.95 * coordinates  # some are corrected, and some held by the bound


def test_what_is_divided_by_is_bounded_by_what_chance_leaves():
    torch.manual_seed(0)
    squares, kept, beta = torch.randn(20_000, 30).double() ** 2, torch.zeros(20_000).double(), 0.9
    for column in squares.T:
        kept = beta * kept + (1 - beta) * column
    spread = (kept / (1 - beta**30)).std().item()
    assert spread == pytest.approx(_by_chance(beta, 30), rel=0.05)  # the spread's own error is 1 %
    assert _by_chance(beta, 1) == pytest.approx(math.sqrt(2))


def test_thresholds_that_move_are_followed():
    start = gc.Adaptive(start=0.01, rate=0.5)
    model, optimizer, engine = attached(1.0, thresholds=start)
    used, after = [], []
    for _ in range(6):
        used.append(engine.noise_stds)
        step(model, optimizer, engine)
        after.append(engine.noise_stds)
    assert used[0] != used[-1]
    for name, param in model.named_parameters():
        group = engine.partition.group_of(name)

        def average(stds: list[dict[str, float]], group: str = group) -> float:
            mean = 0.0
            for each in stds:
                mean = 0.999 * mean + 0.001 * (each[group] / 16) ** 2
            return mean

        assert optimizer.state[param]["noise"] == pytest.approx(average(used), rel=1e-12)
        assert optimizer.state[param]["noise"] != pytest.approx(average(after), rel=1e-3)
    engine.detach()


def test_a_saved_state_goes_on():
    model, optimizer, engine = attached(0.7)
    for _ in range(3):
        step(model, optimizer, engine)
    engine.detach()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)

    def going_on(again: NoiseAwareAdam, of: nn.Module) -> list[Tensor]:
        other = gc.attach(of, again, "layer-wise", plan(0.7), clip="abadi", noise=InsecureNoise(9))
        again.follow(other)
        for _ in range(3):
            step(of, again, other)
        other.detach()
        return [p.detach().clone() for p in of.parameters()]

    copied = copy.deepcopy(model)
    loaded = NoiseAwareAdam(copied.parameters(), lr=0.3)
    loaded.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    fresh_model = copy.deepcopy(model)
    fresh = NoiseAwareAdam(fresh_model.parameters(), lr=0.05)
    want = going_on(optimizer, model)
    assert all(torch.equal(a, b) for a, b in zip(going_on(loaded, copied), want, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(going_on(fresh, fresh_model), want, strict=True))


def test_a_step_without_the_noise_is_refused():
    model = network()
    optimizer = NoiseAwareAdam(model.parameters())
    engine = gc.attach(model, optimizer, "layer-wise", plan(1.0))
    engine.backward(F.cross_entropy(model(X), Y, reduction="none"))
    with pytest.raises(GroupClipError, match=r"call optimizer\.follow\(engine\)"):
        optimizer.step()
    assert engine.ledger.steps == 0  # before anything was released
    optimizer.follow(engine)
    optimizer.step()
    assert engine.ledger.steps == 1
    engine.detach()
    with pytest.raises(GroupClipError, match="detached"):
        optimizer.follow(engine)


def test_after_detach_and_on_copies_it_is_refused():
    model, optimizer, engine = attached(1.0)
    step(model, optimizer, engine)
    engine.detach()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with pytest.raises(GroupClipError, match="detached"):
        optimizer.step()
    with pytest.raises(GroupClipError, match="doesn't know the noise"):
        copy.deepcopy(optimizer).step()


def test_engines_whose_noise_it_can_t_know_are_refused():
    model, optimizer, engine = attached(1.0)
    other = NoiseAwareAdam(network().parameters())
    with pytest.raises(ValueError, match="attached with another optimizer"):
        other.follow(engine)
    engine.detach()
    alone = gc.attach(model, optimizer, "layer-wise", None)
    with pytest.raises(ValueError, match="clips alone"):
        optimizer.follow(alone)
    alone.detach()
    banded = gc.Mechanism(
        dataset_size=64, expected_batch_size=16, steps=8, noise_multiplier=1.0, bands=2, adjacency="zero-out"
    )
    model = network()
    optimizer = NoiseAwareAdam(model.parameters())
    correlated = gc.attach(model, optimizer, "layer-wise", banded)
    with pytest.raises(ValueError, match=r"bands=2: with correlated noise"):
        optimizer.follow(correlated)
    correlated.detach()


@pytest.mark.parametrize(
    "given", [{"lr": -1.0}, {"betas": (0.9, 1.0)}, {"betas": (-0.1, 0.9)}, {"eps": -1.0}, {"weight_decay": -0.1}]
)
def test_arguments_are_checked(given):
    with pytest.raises(ValueError, match=next(iter(given))):
        NoiseAwareAdam(network().parameters(), **given)
