"""Ways to use a model whose samples are to be kept apart, and what is right: a loop over single samples, in float64.

The truth is each sample alone, as a batch of one, whatever the model makes of a batch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import groupclip as gc
from groupclip.engine.engine import Engine

Batch = tuple[Any, ...]
Losses = Callable[[nn.Module, Batch], Tensor]

R = 1e-2
REFUSALS = (gc.GroupClipError, ValueError)


class Runs(nn.Module):
    """``forward(model, *inputs)`` with modules and settings as attributes."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.run = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any, **more: Any) -> Any:
        return self.run(self, *inputs, **more)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def linear(a: int = 5, b: int = 5, **more: Any) -> nn.Linear:
    torch.manual_seed(a * 10 + b)
    return nn.Linear(a, b, **more)


def squares(out: Tensor) -> Tensor:
    """One loss a sample, another for every entry."""
    weights = torch.linspace(0.5, 1.5, out[0].numel(), dtype=out.dtype).view(out.shape[1:])
    return (weights * out.square()).flatten(1).sum(1)


def losses_of(model: nn.Module, batch: Batch) -> Tensor:
    return squares(model(*batch))


@dataclass(frozen=True)
class Clipped:
    """parameter -> ``[B]`` norms, and the sum of gradients clipped to :data:`R` over the root of the number of parameters."""

    norms: dict[str, Tensor]
    sums: dict[str, Tensor]


def single_samples(model: nn.Module, batch: Batch, losses: Losses = losses_of, shared: tuple[int, ...] = ()) -> Clipped:
    """What is right. shared: numbers of inputs that aren't per sample."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows: list[list[Tensor]] = []
    for i in range(len(batch[0])):
        one = tuple(
            v[i : i + 1].clone() if isinstance(v, Tensor) and n not in shared else v for n, v in enumerate(batch)
        )
        found = torch.autograd.grad(losses(model, one).sum(), list(named.values()), allow_unused=True)
        rows.append([torch.zeros_like(p) if g is None else g for g, p in zip(found, named.values(), strict=True)])
    norms, sums, threshold = {}, {}, R / math.sqrt(len(named))
    for n, (name, p) in enumerate(named.items()):
        lengths = torch.tensor([float(row[n].norm()) for row in rows], dtype=torch.float64)
        norms[name] = lengths
        sums[name] = torch.zeros_like(p)
        for row, length in zip(rows, lengths.tolist(), strict=True):
            if math.isfinite(length) and length:
                sums[name] += row[n] * min(1.0, threshold / length)
    return Clipped(norms, {name: total.detach() for name, total in sums.items()})


def attached(model: nn.Module) -> Engine:
    return gc.attach(model, None, "param-wise", None, clip="abadi", thresholds=R)


def by_engine(engine: Engine, losses: Callable[[], Tensor]) -> Clipped:
    engine.backward(losses())
    norms = {name: n.double() for name, n in engine.unsafe_norms().items()}
    named = engine.model.named_parameters()
    sums = {n: torch.zeros_like(p.data) if p.grad is None else p.grad.clone() for n, p in named if p.requires_grad}
    engine.discard()
    return Clipped(norms, sums)


def differing(found: Clipped, right: Clipped, tolerance: float = 1e-10) -> list[str]:
    """The parameters whose norms or sums aren't right."""
    wrong = []
    for name, norms in right.norms.items():
        got = found.norms[name]
        scale = max(1.0, float(norms.nan_to_num(0, 0, 0).max()))
        same = got.shape == norms.shape and torch.allclose(
            got, norms, rtol=tolerance, atol=tolerance * scale, equal_nan=True
        )
        if not same or not (found.sums[name] - right.sums[name]).abs().max() <= tolerance:
            wrong.append(name)
    return wrong


def wrong(
    model: nn.Module, batches: Batch | list[Batch], losses: Losses = losses_of, shared: tuple[int, ...] = (), *,
    between: Callable[[Any], None] | None = None,
) -> list[str]:  # fmt: skip
    """Of the model's own call: the parameters that aren't exact in one of the batches, which go through one engine.

    between: called with the model before every batch but the first.
    """
    model = model.double()
    found: list[str] = []
    engine = attached(model)
    plain = copied(model)
    try:
        for n, batch in enumerate(batches if isinstance(batches, list) else [batches]):
            if n and between is not None:
                between(model)
                between(plain)
            right = single_samples(plain, batch, losses, shared)
            got = by_engine(engine, lambda batch=batch: losses(model, batch))
            found += [f"{name} in batch {n}" for name in differing(got, right)]
    finally:
        engine.detach()
    return found


def copied(model: nn.Module) -> Any:
    """A twin without an engine."""
    with torch.no_grad():
        twin = copy.deepcopy(model)
    plain: dict[int, nn.Parameter] = {}
    for module in twin.modules():
        for name, p in list(module._parameters.items()):
            if p is not None:
                module._parameters[name] = plain.setdefault(id(p), nn.Parameter(p.detach().clone(), p.requires_grad))
    return twin
