"""A small model with an engine on it, and what tests of its life ask about both."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import groupclip as gc
from check_engine import ENTRIES

ENTRY = ENTRIES["mlp"]


def plan(steps: int = 6, sigma: float | None = 1.0) -> gc.Mechanism:
    return gc.Mechanism(dataset_size=40, expected_batch_size=8, steps=steps, noise_multiplier=sigma)


def attached(
    model: nn.Module | None = None, style: str = "layer-wise", mechanism: gc.Mechanism | None = None, **options: Any
) -> tuple[nn.Module, torch.optim.Optimizer, gc.Engine]:
    """The model (the catalogue's MLP by default), an optimizer of what trains, and the engine of both."""
    model = ENTRY.model() if model is None else model
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    return model, optimizer, gc.attach(model, optimizer, style, mechanism or plan(), **options)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, engine: gc.Engine, steps: int, first: int = 0) -> None:
    """So many steps on batches of 8 that differ from step to step."""
    for seed in range(first, first + steps):
        engine.backward(ENTRY.losses(model, ENTRY.batch(8, next(model.parameters()).dtype, seed=seed)))
        optimizer.step()
        optimizer.zero_grad()


def numbers(model: nn.Module) -> list[Tensor]:
    """Copies of the parameters."""
    return [p.detach().clone() for p in model.parameters()]


def same(model: nn.Module, before: list[Tensor]) -> bool:
    """Whether the parameters are still those."""
    return all(torch.equal(p.detach(), q) for p, q in zip(model.parameters(), before, strict=True))


def facts(model: nn.Module) -> Any:
    """All of a model that attach or a failure of it may change."""
    return (
        [
            (n, type(p), p.requires_grad, dict(p.__dict__), p.grad, p._backward_hooks)
            for n, p in model.named_parameters()
        ],
        [
            (n, type(m), list(m.__dict__), len(m._forward_pre_hooks), len(m._forward_hooks))
            for n, m in model.named_modules()
        ],
        {n: t.clone() for n, t in model.state_dict().items()}.keys(),
    )


class Holder(nn.Module):
    """One parameter, and no forward of its own."""

    def __init__(self, parameter: nn.Parameter) -> None:
        super().__init__()
        self.weight = parameter
