"""Without noise and clipping it is plain training, step for step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import groupclip as gc
from check_engine import ENTRIES, clipped_by_engine, cut, gradients, grouped

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("split", [(12,), (4, 4, 4), (1, 0, 11)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["mlp", "cnn-groupnorm", "vit", "gpt", "gpt-tied"])
def test_without_noise_and_clipping_it_is_plain_training(name: str, optimizer: str, split: tuple[int, ...]) -> None:
    """sigma = 0, a huge R, every sample in every batch: five steps of mean-loss training, step for step, float64."""
    entry = ENTRIES[name]
    plain, private = entry.model(torch.float64), entry.model(torch.float64)
    theirs, ours = OPTIMIZERS[optimizer](plain), OPTIMIZERS[optimizer](private)
    mechanism = gc.Mechanism(dataset_size=12, expected_batch_size=12, steps=5, noise_multiplier=0.0)
    engine = gc.attach(private, ours, grouped(private, "layer-wise"), mechanism, clip="abadi", thresholds=1e9)
    for step in range(5):
        batch = entry.batch(12, torch.float64, seed=step)
        theirs.zero_grad()
        entry.losses(plain, batch).mean().backward()
        theirs.step()
        ours.zero_grad()
        for part in cut(batch, split):
            engine.backward(entry.losses(private, part))
        ours.step()
        for (parameter, p), q in zip(plain.named_parameters(), private.parameters(), strict=True):
            torch.testing.assert_close(q.data, p.data, rtol=0, atol=1e-10, msg=f"{parameter} at step {step}")


def test_twin_a_batch_without_one_of_its_samples_is_told_apart() -> None:
    """The tolerance above is far below what one sample does in one step."""
    entry = ENTRIES["mlp"]
    batch, found = entry.batch(12, torch.float64), []
    for size in (12, 11):
        model = entry.model(torch.float64)
        optimizer = OPTIMIZERS["sgd"](model)
        (entry.losses(model, tuple(t[:size] for t in batch)).sum() / 12).backward()
        optimizer.step()
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert (found[0] - found[1]).abs().max() > 1e-6


def test_poisson_batches_of_everybody_are_plain_training() -> None:
    """The whole loop: q = 1, so each logical batch is the data set, in micro-batches of 5."""
    entry = ENTRIES["mlp"]
    plain, private = entry.model(torch.float64), entry.model(torch.float64)
    theirs, ours = OPTIMIZERS["adamw"](plain), OPTIMIZERS["adamw"](private)
    data = torch.utils.data.TensorDataset(*entry.batch(12, torch.float64))
    mechanism = gc.Mechanism(dataset_size=12, expected_batch_size=12, steps=5, noise_multiplier=0.0)
    engine = gc.attach(private, ours, "layer-wise", mechanism, clip="abadi", thresholds=1e9)
    for logical in gc.poisson_batches(data, mechanism, microbatch=5):
        for part in logical:
            engine.backward(entry.losses(private, tuple(part)))
        ours.step()
        ours.zero_grad()
        theirs.zero_grad()
        entry.losses(plain, data.tensors).mean().backward()
        theirs.step()
    for p, q in zip(plain.parameters(), private.parameters(), strict=True):
        torch.testing.assert_close(q.data, p.data, rtol=0, atol=1e-10)
    assert engine.ledger is not None and engine.ledger.steps_by_sampler == {"groupclip": 5, "user": 0}


def test_the_divisor_is_the_expected_batch_size_not_the_real_one() -> None:
    """The size of a Poisson batch is secret, and dividing by it would leak and bias."""
    entry = ENTRIES["mlp"]
    model = entry.model(torch.float64)
    batch = entry.batch(3, torch.float64)
    groups = grouped(model, "layer-wise")
    sums = clipped_by_engine(model, entry.losses, batch, groups).sums
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    mechanism = gc.Mechanism(dataset_size=80, expected_batch_size=40, steps=1, noise_multiplier=0.0)
    engine = gc.attach(model, optimizer, groups, mechanism)
    engine.backward(entry.losses(model, batch))
    optimizer.step()
    for n, g in gradients(model).items():
        torch.testing.assert_close(g, sums[n] / 40, rtol=1e-12, atol=1e-15)
