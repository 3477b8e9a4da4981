"""What the tests of the peers' faults share: tiny models with the trait that broke a peer, and how they are judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
import oracle
from check_engine import Clipped, between, clipped_by_engine, faults, inexact, members
from models import Batch, output_square

EVERY_STYLE = ("all-layer", "layer-wise", "param-wise")
EVERY_CLIP = ("automatic", "abadi", "flat-normalised", "global")


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def exact(model: nn.Module, *batch: Tensor, losses: oracle.Losses = output_square) -> bool:
    """Whether sums and norms are those of single samples, in every style, to 1e-10 in float64."""
    found = inexact(model, batch, losses, EVERY_STYLE)
    assert found == [], "; ".join(found)
    return True


def same_in_micro_batches(model: nn.Module, batch: Batch, split: Sequence[int], style: str = "all-layer") -> bool:
    """Whether micro-batches of those sizes add up to the clipped sum over single samples."""
    model, batch = model.double(), tuple(t.double() if t.is_floating_point() else t for t in batch)
    groups = gc.partition(model, style)
    thresholds = between(oracle.clipped_sum(model, output_square, batch, members(groups)).norms)
    want = oracle.clipped_sum(model, output_square, batch, members(groups), "abadi", thresholds)
    got = clipped_by_engine(model, output_square, batch, groups, "abadi", thresholds, split)
    found = faults(got, want, groups, thresholds, 1e-10)
    assert found == [], "; ".join(found)
    return True


def length(grads: dict[str, Tensor]) -> float:
    """The norm of all gradients together."""
    return math.sqrt(sum(g.double().square().sum().item() for g in grads.values()))


def contribution(model: nn.Module, batch: Batch, style: str, clip: str, losses: oracle.Losses = output_square) -> float:
    """How much one sample adds to the sum at R = 1, when its gradient is huge (a millionfold loss)."""
    groups = gc.partition(model, style)
    got: Clipped = clipped_by_engine(model, lambda m, b: 1e6 * losses(m, b), tuple(t[:1] for t in batch), groups, clip)
    return length(got.sums)


def at_most_r(model: nn.Module, *batch: Tensor, losses: oracle.Losses = output_square) -> bool:
    """Whether a sample adds no more than R, whatever the style and the clip function; and that it adds something."""
    for style in EVERY_STYLE:
        added = {clip: contribution(model, batch, style, clip, losses) for clip in EVERY_CLIP}
        assert max(added.values()) <= 1 + 1e-5, (style, added)
        assert added["abadi"] > 0.4, (style, added)  # some groups may have no gradient
    return True


def plan(sigma: float = 1.0, steps: int = 20, batch: float = 8, size: int = 40) -> gc.Mechanism:
    return gc.Mechanism(dataset_size=size, expected_batch_size=batch, steps=steps, noise_multiplier=sigma)


def private(
    model: nn.Module, sigma: float = 1.0, style: str = "layer-wise", steps: int = 20, lr: float = 0.1
) -> tuple[torch.optim.Optimizer, gc.Engine]:
    """An optimizer of what trains, and an engine on both."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)
    return optimizer, gc.attach(model, optimizer, style, plan(sigma, steps))


def noise_of_a_step(model: nn.Module, optimizer: torch.optim.Optimizer, engine: gc.Engine) -> dict[str, Tensor]:
    """Steps on what is in ``p.grad``; the noise that came to each parameter's sum, in units of its standard deviation."""
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    clipped = {n: torch.zeros_like(p.data) if p.grad is None else p.grad.clone() for n, p in trained.items()}
    optimizer.step()
    size = engine.mechanism.expected_batch_size if engine.mechanism is not None else 1.0
    noise = {}
    for n, p in trained.items():
        assert p.grad is not None, n
        noise[n] = (p.grad * size - clipped[n]).double() / engine.noise_std
    optimizer.zero_grad()
    return noise


def is_noise(noise: dict[str, Tensor]) -> bool:
    """Whether every number got noise, of the right size in all.

    False alarms: from 100 numbers on, a root mean square off by a third is 4.7 standard errors away (3e-6; the tests use
    more numbers, fixed in count). An exact zero doesn't happen.
    """
    numbers = torch.cat([n.flatten() for n in noise.values()])
    assert len(numbers) >= 100
    for name, values in noise.items():
        assert (values != 0).all(), f"{name} has numbers without noise"
    size = numbers.square().mean().sqrt().item()
    assert 2 / 3 < size < 4 / 3, f"the noise is {size:.3f} of what it should be"
    return True


class Applies(nn.Module):
    """Modules used by a function: ``forward(x) = use(self, x)``."""

    def __init__(self, use: Callable[..., Tensor], **modules: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.use = use
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.use(self, *inputs)


def tied_autoencoder() -> nn.Module:
    """One matrix as encoder and as decoder, and a table of tokens that is the head as well."""
    return Applies(
        lambda m, ids: F.linear(torch.tanh(F.linear(m.table(ids), m.weight)) @ m.weight, m.table.weight),
        weight=nn.Parameter(torch.randn(5, 4)),
        table=nn.Embedding(7, 4),
    )


def repeated(times: int) -> nn.Module:
    """One block, several times over: ALBERT's sharing."""

    def use(m: nn.Module, x: Tensor) -> Tensor:
        for _ in range(times):
            x = m.norm(x + torch.tanh(m.block(x)))
        return m.head(x)

    return Applies(use, block=nn.Linear(4, 4), norm=nn.LayerNorm(4), head=nn.Linear(4, 2))


class TwoTowers(nn.Module):
    """The head is registered first; two towers of which neither is below the other."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 2)
        self.left, self.right = nn.Linear(4, 6), nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.left(x)) + torch.tanh(self.right(x)))
