"""The noise of a step: its size in every group, once per logical step, on everything that trains and nothing else.

False-alarm rates: a standard deviation is estimated from N = 40,000 draws or more, so its relative standard error
is 1/sqrt(2N) = 0.35 % and the bound of 2 % lies 5.6 of them away: 2e-8 a figure, mean included; below 1e-6 for this
file as a whole. Noise that is 5 % off must be rejected by the same function (it isn't with a chance below 1e-15).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
from check_engine import ENTRIES, clipped_by_engine, cut, gradients
from groupclip.noise.sources import NoiseSource, SecureNoise

N = 40_000
DIM, CLASSES = 10_000, 4  # a linear layer of N weights


class Wide(nn.Module):
    """Groups of N numbers and more; one layer that no sample reaches; a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, N // 5)  # 32,000 + 8,000
        self.last = nn.Linear(N // 5, 5)  # 40,000 + 5
        self.unused = nn.Linear(N, 1, bias=False)
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(self.frozen(x))))


class Counted:
    """A source that notes what it was asked for, and passes it on to a secure one, scaled (by 1 if right)."""

    secure = True

    def __init__(self, scale: float = 1.0) -> None:
        self.scale, self.calls, self._source = scale, [], SecureNoise()
        self.calls: list[tuple[tuple[int, ...], float]] = []

    def add_(self, tensor: Tensor, std: float) -> None:
        self.calls.append((tuple(tensor.shape), std))
        self._source.add_(tensor, std * self.scale)


def plan(sigma: float, batch: int = 8, steps: int = 20) -> gc.Mechanism:
    return gc.Mechanism(dataset_size=80, expected_batch_size=batch, steps=steps, noise_multiplier=sigma)


def wrong_stds(noise: Mapping[str, Tensor], std: float) -> list[str]:
    """The groups whose noise hasn't mean zero and standard deviation ``std`` to 2 %, at N draws or more."""
    found = []
    for group, values in noise.items():
        assert values.numel() >= N, f"{group}: {values.numel()} draws are too few to say"
        z = values.double() / std
        if abs(z.std().item() - 1) > 0.02 or abs(z.mean().item()) > 6 / math.sqrt(z.numel()):
            found.append(f"{group}: {z.std().item():.4f}")
    return found


THRESHOLDS: dict[str, Callable[[], float | list[float]]] = {
    "all-layer": lambda: 0.7,
    "layer-wise": lambda: [0.3, 2.0, 0.05],
}


def step_noise(style: str, sigma: float, source: NoiseSource, micro_batches: int) -> tuple[dict[str, Tensor], float]:
    """What a step adds to the sum of clipped gradients, by group, and sigma ||R|| as worked out here."""
    torch.manual_seed(0)
    model, thresholds = Wide(), THRESHOLDS[style]()
    groups = gc.partition(model, style)
    x = torch.randn(8, 4)

    def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return model(*batch).square().sum(1)

    sums = clipped_by_engine(model, losses, (x,), groups, "automatic", thresholds).sums  # type: ignore[arg-type]
    mechanism = plan(sigma)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine = gc.attach(model, optimizer, groups, mechanism, thresholds=thresholds, noise=source)
    for part in cut((x,), [8 // micro_batches] * micro_batches):
        engine.backward(losses(model, part))
    optimizer.step()
    noise = {n: g * mechanism.expected_batch_size - sums[n] for n, g in gradients(model).items()}
    r = thresholds if isinstance(thresholds, list) else [thresholds]
    engine.detach()
    by_group = {group: torch.cat([noise[n].flatten() for n in groups[group]]) for group in groups}
    return by_group, sigma * math.sqrt(sum(value**2 for value in r))


@pytest.mark.parametrize("micro_batches", [1, 4])
@pytest.mark.parametrize("style", THRESHOLDS)
def test_the_noise_of_every_group_has_std_sigma_times_the_length_of_r(style: str, micro_batches: int) -> None:
    """The clipped sums, worked out apart, are subtracted. False-alarm rate: 6e-8 (three groups)."""
    noise, std = step_noise(style, 1.3, SecureNoise(), micro_batches)
    assert wrong_stds(noise, std) == []


@pytest.mark.parametrize("scale", [0.95, 1.05])
@pytest.mark.parametrize("style", THRESHOLDS)
def test_twin_noise_that_is_five_percent_off_is_rejected(style: str, scale: float) -> None:
    noise, std = step_noise(style, 1.3, Counted(scale), 1)
    assert len(wrong_stds(noise, std)) == len(noise)


def test_twin_noise_by_the_groups_own_threshold_is_rejected() -> None:
    """sigma R_m in place of sigma ||R||: what 'per-layer' noise would be."""
    noise, std = step_noise("layer-wise", 1.0, SecureNoise(), 1)
    own = dict(zip(noise, [0.3, 2.0, 0.05], strict=True))
    wrong = {group: z * own[group] / std for group, z in noise.items()}
    assert len(wrong_stds(wrong, std)) >= 2


@pytest.mark.parametrize("micro_batches", [1, 3, 16])
def test_once_per_logical_step(micro_batches: int) -> None:
    """Noise for each coordinate once, whatever the number of micro-batches; of the whole std, not of a share of it."""
    entry = ENTRIES["mlp"]
    model, source = entry.model(), Counted()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = gc.attach(model, optimizer, "layer-wise", plan(2.0), thresholds=[3.0, 4.0, 12.0], noise=source)
    assert engine.noise_std == pytest.approx(26.0)
    for _ in range(2):
        for part in cut(
            entry.batch(16),
            [16 // micro_batches] * (micro_batches - 1) + [16 - 16 // micro_batches * (micro_batches - 1)],
        ):
            engine.backward(entry.losses(model, part))
        assert source.calls == []
        optimizer.step()
        optimizer.zero_grad()
        assert [std for _, std in source.calls] == [pytest.approx(26.0)] * len(source.calls)
        assert sum(math.prod(shape) for shape, _ in source.calls) == sum(p.numel() for p in model.parameters())
        source.calls.clear()


@pytest.mark.parametrize("micro_batches", [1, 3, 16])
def test_the_noise_does_not_grow_with_micro_batches(micro_batches: int) -> None:
    """The same seen from the gradients themselves. False-alarm rate: 2e-8."""
    torch.manual_seed(0)
    model = nn.Linear(DIM, CLASSES, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    mechanism = plan(1.0, batch=16)
    gc_engine = gc.attach(model, optimizer, "all-layer", mechanism, thresholds=1e-3, clip="abadi")
    x = torch.zeros(16, DIM)  # gradients of zero: what is left is the noise
    for part in x.chunk(micro_batches):
        gc_engine.backward(model(part).sum(1))
    optimizer.step()
    noise = {"all": gradients(model)["weight"].flatten() * mechanism.expected_batch_size}
    assert wrong_stds(noise, 1e-3) == []


def test_an_empty_batch_steps_on_pure_noise() -> None:
    """No backward at all, or one of an empty micro-batch: the parameters move by lr sigma ||R|| / E[B] times a normal.

    False-alarm rate: 2e-8 a case."""
    for micro_batches in (0, 1):
        torch.manual_seed(0)
        model = nn.Linear(DIM, CLASSES, bias=False)
        before = model.weight.detach().clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        mechanism = plan(1.5)
        engine = gc.attach(model, optimizer, "all-layer", mechanism, thresholds=2.0)
        for _ in range(micro_batches):
            engine.backward(
                F.cross_entropy(model(torch.zeros(0, DIM)), torch.zeros(0, dtype=torch.long), reduction="none")
            )
        optimizer.step()
        moved = {"all": (before - model.weight.detach()).flatten()}
        assert wrong_stds(moved, 0.5 * 1.5 * 2.0 / mechanism.expected_batch_size) == []
        assert engine.ledger is not None and engine.ledger.steps == 1


def test_what_took_no_part_gets_noise_and_what_is_frozen_none() -> None:
    """Else the update would tell that no sample reached the layer. False-alarm rate: 2e-8."""
    torch.manual_seed(0)
    model = Wide()
    frozen = model.frozen.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = gc.attach(model, optimizer, "layer-wise", plan(1.0))
    engine.backward(model(torch.randn(8, 4)).square().sum(1))
    before = model.unused.weight.detach().clone()
    optimizer.step()
    moved = {"unused": (before - model.unused.weight.detach()).flatten()}
    assert wrong_stds(moved, 1.0 / 8) == []
    assert model.frozen.weight.grad is None and torch.equal(model.frozen.weight, frozen)


def test_a_parameter_frozen_between_steps_gets_none() -> None:
    entry = ENTRIES["mlp"]
    model = entry.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = gc.attach(model, optimizer, "layer-wise", plan(1.0))
    for frozen in (False, True, False):
        model[0].requires_grad_(not frozen)  # type: ignore[index]
        before = [p.detach().clone() for p in model.parameters()]
        engine.backward(entry.losses(model, entry.batch(8)))
        optimizer.step()
        optimizer.zero_grad()
        moved = [not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)]
        assert moved == [not frozen, not frozen, True, True, True]


def test_two_steps_and_two_parameters_share_no_noise() -> None:
    """Correlations of N pairs, of values and of squares. False-alarm rate: 2e-8 (6 standard errors, 8 figures)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(DIM, CLASSES, bias=False), nn.Linear(CLASSES, DIM, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    gc.attach(model, optimizer, "layer-wise", plan(1.0))
    drawn = []
    for _ in range(2):
        optimizer.step()
        drawn += [g.flatten().clone() for g in gradients(model).values()]
        optimizer.zero_grad()

    def correlated(a: Tensor, b: Tensor) -> bool:
        return any(abs(torch.corrcoef(torch.stack([a**k, b**k]))[0, 1]) > 6 / math.sqrt(N) for k in (1, 2))

    assert not any(correlated(drawn[i], drawn[j]) for i, j in ((0, 1), (0, 2), (1, 3), (2, 3)))
    twin = torch.where(torch.arange(N) % 10 == 0, drawn[0], drawn[2])  # a tenth of the noise used twice
    assert correlated(drawn[0], twin)


def test_the_noise_is_fresh_in_every_engine() -> None:
    """A run that is repeated with the same seeds must not repeat its noise."""
    seen = []
    for _ in range(2):
        torch.manual_seed(0)
        model = nn.Linear(5, 5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        gc.attach(model, optimizer, "all-layer", plan(1.0))
        optimizer.step()
        seen.append(gradients(model)["weight"])
    assert not torch.equal(seen[0], seen[1])
