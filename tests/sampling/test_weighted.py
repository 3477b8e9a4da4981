"""Classes of unequal size: a weighted sampler is refused, and three ways that work instead. docs/data.md tells them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset, WeightedRandomSampler

import groupclip as gc
from groupclip.sampling.weighted import WEIGHTED

NUMBER, RARE = 120, 12
DRAW = torch.Generator().manual_seed(0)
X, Y = torch.randn(NUMBER, 4, generator=DRAW), (torch.arange(NUMBER) < RARE).long()
RECORDS = TensorDataset(X, Y)
SHARE = torch.tensor([0.2, 1.0])  # of the plan's rate, by class: public numbers
WEIGHT = torch.tensor([1.0, 5.0])
ALPHA = 1e-6  # of each test below: a right sampler fails one run in a million


def plan(sigma: float = 1.0, size: int = NUMBER, steps: int = 300) -> gc.Mechanism:
    return gc.Mechanism(dataset_size=size, expected_batch_size=size // 4, steps=steps, noise_multiplier=sigma)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def steps(engine: gc.Engine, batches: Any, losses: Any) -> None:
    """The own loop."""
    assert engine.optimizer is not None
    for batch in batches:
        for x, y in batch:
            engine.backward(losses(engine.model, x, y))
        engine.optimizer.step()
        engine.optimizer.zero_grad()


def attached(mechanism: gc.Mechanism, **options: Any) -> gc.Engine:
    net = model()
    return gc.attach(net, torch.optim.SGD(net.parameters(), lr=0.0), "all-layer", mechanism, **options)


def spent_as_planned(engine: gc.Engine, mechanism: gc.Mechanism) -> bool:
    assert engine.ledger is not None
    ours = engine.ledger.steps_by_sampler == {"groupclip": mechanism.steps, "user": 0}
    return ours and engine.epsilon(delta=1e-5) == mechanism.epsilon(delta=1e-5)


def test_a_weighted_sampler_is_refused_with_three_ways() -> None:
    loader = DataLoader(RECORDS, batch_size=30, sampler=WeightedRandomSampler(WEIGHT[Y].tolist(), NUMBER))
    with pytest.raises(TypeError) as raised:
        gc.poisson_batches(loader, plan())
    assert WEIGHTED in str(raised.value)
    assert all(way in WEIGHTED for way in ("losses * weight[labels]", "largest rate", "public records"))


# ------------------------------------------------------------------ one: weights of the losses


def weighted_losses(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net(x), y, reduction="none") * WEIGHT[y]


def sum_of_one_batch(clip: str, losses: Any, threshold: float = 1e3) -> Tensor:
    """Of all records, without noise."""
    net = model()
    engine = gc.attach(net, None, "all-layer", None, clip=clip, thresholds=threshold)
    engine.backward(losses(net, X, Y))
    assert net.weight.grad is not None
    return net.weight.grad.clone()


def test_weights_of_the_losses_weigh_gradients_below_the_threshold() -> None:
    """Each sample's gradient, computed alone, times its weight."""
    expected = torch.zeros(2, 4)
    for x, y in zip(X.split(1), Y.split(1), strict=True):
        net = model()
        F.cross_entropy(net(x), y).backward()
        expected += WEIGHT[y] * net.weight.grad
    torch.testing.assert_close(sum_of_one_batch("abadi", weighted_losses), expected, rtol=1e-4, atol=1e-5)
    mechanism = plan(steps=5)
    engine = attached(mechanism, clip="abadi")
    steps(engine, gc.poisson_batches(RECORDS, mechanism, 16), weighted_losses)
    assert spent_as_planned(engine, mechanism)


def test_automatic_clipping_takes_such_weights_out_again() -> None:
    """It gives every sample one length, so the page says: with ``abadi``."""

    def plain(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(net(x), y, reduction="none")

    weighted, same = (sum_of_one_batch("automatic", losses, threshold=1.0) for losses in (weighted_losses, plain))
    torch.testing.assert_close(weighted, same, rtol=0.05, atol=0.05)


# ------------------------------------------------------------------ two: the largest rate, thinned by chance


def counted(share: Tensor, mechanism: gc.Mechanism) -> tuple[np.ndarray, gc.Engine]:
    """How often each record acted: had a loss that wasn't left out."""
    seen = np.zeros(len(X), dtype=int)
    rows = TensorDataset(torch.cat([X, torch.arange(len(X)).float().unsqueeze(1)], 1), Y)
    engine = attached(mechanism)
    torch.manual_seed(1)

    def losses(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        kept = torch.rand(len(y)) < share[y]
        np.add.at(seen, x[kept, 4].long().numpy(), 1)
        return F.cross_entropy(net(x[:, :4]), y, reduction="none") * kept

    steps(engine, gc.poisson_batches(rows, mechanism, 16), losses)
    return seen, engine


def p_value(seen: np.ndarray, rates: np.ndarray, number: int) -> float:
    """Two-sided chi-squared of how often each record acted in ``number`` steps at its rate."""
    x = ((seen - number * rates) ** 2 / (number * rates * (1 - rates))).sum()
    return float(2 * min(stats.chi2.cdf(x, len(seen)), stats.chi2.sf(x, len(seen))))


def test_the_largest_rate_is_planned_and_the_others_are_thinned() -> None:
    mechanism = plan()
    seen, engine = counted(SHARE, mechanism)
    rates = mechanism.sample_rate * SHARE[Y].numpy().astype(float)
    assert p_value(seen, rates, mechanism.steps) > ALPHA
    assert spent_as_planned(engine, mechanism)


def test_twin_without_thinning_the_law_is_another() -> None:
    mechanism = plan()
    seen, _ = counted(torch.ones(2), mechanism)
    rates = mechanism.sample_rate * SHARE[Y].numpy().astype(float)
    assert p_value(seen, rates, mechanism.steps) < ALPHA


# ------------------------------------------------------------------ three: public records


def test_public_records_of_the_rare_class_are_added_as_often_as_one_likes() -> None:
    """A private record stays one record of many, and its rate and sensitivity are those of the plan."""
    public = TensorDataset(torch.randn(6, 4), torch.ones(6, dtype=torch.long))
    together = ConcatDataset([RECORDS, *[public] * 8])
    mechanism = plan(size=len(together), steps=40)
    engine, rare = attached(mechanism), []

    def losses(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        rare.append(y.float().mean())
        return F.cross_entropy(net(x), y, reduction="none")

    steps(engine, gc.poisson_batches(together, mechanism, len(together)), losses)
    assert spent_as_planned(engine, mechanism)
    assert len(together) == NUMBER + 48
    # 60 of 168 records, where 12 of 120 were; the standard error of the mean is about 0.01
    assert float(torch.stack(rare).mean()) == pytest.approx(60 / 168, abs=0.06)
