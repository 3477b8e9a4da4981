"""Averages of weights, against what is kept of every step; a saved average goes on; the model stays as it is."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
from groupclip.engine.averages import Averaging, WeightAverage

STEPS = 9
PLAN = gc.Mechanism(dataset_size=40, expected_batch_size=10, steps=STEPS, noise_multiplier=1.0)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.detach().clone().as_subclass(Tensor) for n, p in model.named_parameters() if p.requires_grad}


def trained(*hows: str) -> tuple[nn.Module, list[dict[str, Tensor]], list[WeightAverage]]:
    """A private run: its model, its weights before the first and after every step, and the averages."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    engine = gc.attach(model, optimizer, "layer-wise", PLAN)
    averages = [WeightAverage(model, how, steps=STEPS) for how in hows]
    data = torch.utils.data.TensorDataset(torch.randn(40, 3).double(), torch.randint(2, (40,)))
    kept = [weights_of(model)]
    for batch in gc.poisson_batches(data, PLAN):
        for x, y in batch:
            engine.backward(F.cross_entropy(model(x), y, reduction="none"))
        optimizer.step()
        optimizer.zero_grad()
        for average in averages:
            average.update()
        kept.append(weights_of(model))
    engine.detach()
    return model, kept, averages


def test_each_average_is_what_its_name_says():
    _, kept, (ema, tail, last, whole) = trained("ema:0.6", "tail:0.5", "last:3", "last:100")
    for name, first in kept[0].items():
        mean = first
        for t, weights in enumerate(kept[1:], start=1):
            decay = min(0.6, (1 + t) / (10 + t))
            mean = weights[name] * (1 - decay) + decay * mean
        assert torch.allclose(ema.weights()[name], mean, rtol=0, atol=1e-12)
        for average, count in ((tail, 4), (last, 3), (whole, 9)):  # round(0.5 * 9) = 4
            expected = torch.stack([weights[name] for weights in kept[-count:]]).mean(0)
            assert torch.allclose(average.weights()[name], expected, rtol=0, atol=1e-12)
            assert average.averaged == count


def test_the_model_is_left_alone_and_a_copy_holds_the_average():
    model, kept, (average,) = trained("last:3")
    for name, p in model.named_parameters():
        assert not p.requires_grad or torch.equal(p, kept[-1][name])
    plain = average.model()
    assert all(torch.equal(p, average.weights()[n]) for n, p in plain.named_parameters() if p.requires_grad)
    assert type(plain[0].weight) is nn.Parameter and torch.equal(plain[0].bias, model[0].bias)
    assert list(plain.state_dict()) == list(model.state_dict())


def test_a_copy_is_made_of_an_attached_model_too():
    model = nn.Linear(3, 2)
    engine = gc.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "all-layer", PLAN)
    plain = WeightAverage(model, "ema:0.9").model()
    engine.detach()
    plain(torch.randn(5, 3)).sum().backward()  # nobody clips
    assert plain.weight.grad is not None and model.weight.grad is None


@pytest.mark.parametrize("how", ["ema:0.9", "tail:0.5", "last:3"])
@pytest.mark.parametrize("cut", [2, 6])
def test_a_saved_average_goes_on(how: str, cut: int):
    weights = torch.randn(STEPS, 3, 2, generator=torch.Generator().manual_seed(3))
    model = nn.Linear(2, 3, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    whole, first = WeightAverage(model, how, steps=STEPS), WeightAverage(model, how, steps=STEPS)
    second = None
    for step, value in enumerate(weights):
        if step == cut:
            second = WeightAverage(model, how, steps=STEPS)
            second.load_state_dict(copy.deepcopy(first.state_dict()))
        with torch.no_grad():
            model.weight.copy_(value)
        for average in (whole, second or first):
            average.update()
    assert torch.equal(whole.weights()["weight"], second.weights()["weight"])
    assert whole.told == second.told


def test_half_precision_is_averaged_in_float32():
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    average = WeightAverage(model, "ema:0.999")
    for _ in range(20_000):
        with torch.no_grad():
            model.weight.fill_(1.0)
        average.update()
    assert average.weights()["weight"].item() == 1.0  # in bfloat16 1/1000 of the rest would be lost long before


@pytest.mark.parametrize("how", ["ema", "ema:0", "ema:1", "ema:x", "tail:0", "tail:1.5", "last:0", "last:2.5", "", "ema:nan"])
def test_other_names_are_refused(how: str):
    with pytest.raises(ValueError, match="is no average of weights: give ema:DECAY, tail:SHARE or last:K"):
        Averaging.named(how)


def test_what_else_is_refused():
    with pytest.raises(ValueError, match="give steps="):
        WeightAverage(nn.Linear(2, 2), "tail:0.5")
    average = WeightAverage(nn.Linear(2, 2), "ema:0.9")
    with pytest.raises(ValueError, match="of a model with other trainable parameters"):
        average.load_state_dict(WeightAverage(nn.Linear(3, 2), "ema:0.9").state_dict())
    assert average.told == "those after the last step"
