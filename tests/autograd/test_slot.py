"""One sample more or less moves what the noise is added to by no more than R, however large the sum is that it is added to.

A sum of B samples that were alike has an ulp of about B/256 in bfloat16: rounded before the noise, it would stand still for most
samples, and jump by many thresholds for some.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc

R, D = 1.0, 64
HALVES = [torch.bfloat16, torch.float16]


class Listening:
    """A source of noise that adds none, and keeps what it was given."""

    secure = True

    def __init__(self) -> None:
        self.sums: list[Tensor] = []

    def add_(self, tensor: Tensor, std: float) -> None:
        self.sums.append(tensor.detach().double().flatten().clone())


class Shifted(nn.Module):
    """Its weight is computed with: ``(1 + w) / 3``."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, D))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, (1 + self.w) / 3)


class Half(nn.Module):
    """A part of its parameter is used, as attention uses packed projections."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3, D))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.w.chunk(3)[1])


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(torch.ones(len(x), 1, dtype=torch.long)).sum(1)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(D, 1, bias=False),
    "convolution": lambda: nn.Sequential(nn.Unflatten(1, (1, D)), nn.Conv1d(1, 1, D, bias=False), nn.Flatten()),
    "embedding": Bag,
    "computed weight": Shifted,
    "part of a weight": Half,
    "scale": lambda: nn.RMSNorm(D),
}


def moved(build: Callable[[], nn.Module], dtype: torch.dtype, autocast: torch.dtype | None, microbatch: int) -> float:
    """The longest way that one sample more moves the sum which noise is added to, in R; around 1,000 samples that are alike."""
    torch.manual_seed(0)
    model = build().to(dtype)
    heard = Listening()
    mechanism = gc.Mechanism(dataset_size=100_000, expected_batch_size=1_000, steps=100, noise_multiplier=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine = gc.attach(model, optimizer, "all-layer", mechanism, clip="abadi", thresholds=R, noise=heard)
    sample = torch.full((1, D), 0.97 / math.sqrt(D), dtype=dtype)
    for size in range(1000, 1008):
        for part in sample.expand(size, D).split(microbatch):
            with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
                out = model(part)
            engine.backward(out.float().flatten(1).sum(1) * 3)
        optimizer.step()
        optimizer.zero_grad()
    assert float(heard.sums[0].norm()) > 900 * R  # they add up
    return max(float((b - a).norm()) for a, b in zip(heard.sums, heard.sums[1:], strict=False)) / R


@pytest.mark.parametrize("microbatch", [300, 2_000])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", MODELS)
def test_of_half_precision_parameters(name: str, dtype: torch.dtype, microbatch: int) -> None:
    assert 0.9 < moved(MODELS[name], dtype, None, microbatch) <= 1.001


@pytest.mark.parametrize("name", MODELS)
def test_of_float32_parameters_under_autocast(name: str) -> None:
    assert 0.9 < moved(MODELS[name], torch.float32, torch.bfloat16, 2_000) <= 1.001


def test_twin_a_sum_in_half_precision_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("groupclip.persample.outer.wide_product", lambda a, b: (a.to(b.dtype) @ b).float())
    assert moved(MODELS["linear"], torch.bfloat16, None, 2_000) > 2


def test_what_was_kept_beside_the_gradient_goes_with_it() -> None:
    """``zero_grad``, ``discard`` and a failed pass give up both."""
    model, heard = nn.Linear(D, 1, bias=False).bfloat16(), Listening()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    mechanism = gc.Mechanism(dataset_size=100, expected_batch_size=4, steps=9, noise_multiplier=1.0)
    engine = gc.attach(model, optimizer, "all-layer", mechanism, noise=heard)
    x = torch.randn(4, D).bfloat16()
    for give_up in (optimizer.zero_grad, lambda: optimizer.zero_grad(set_to_none=False), engine.discard, None):
        if give_up is not None:
            engine.backward(model(x * 3).flatten())
            give_up()
        engine.backward(model(x).flatten())
        optimizer.step()
        optimizer.zero_grad()
    assert all(torch.equal(total, heard.sums[0]) for total in heard.sums)
    optimizer.step()
    assert not heard.sums[-1].any()  # an empty batch
