"""The optimizer of a run, and its learning rate from step to step."""

from __future__ import annotations

import math
from typing import Protocol

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

OPTIMIZERS = ("adamw", "sgd")
SCHEDULES = ("constant", "linear", "cosine")


class Rates(Protocol):
    """What settings say of the optimizer: ``lr`` is of the first step; ``momentum`` is of sgd."""

    @property
    def optimizer(self) -> str: ...
    @property
    def lr(self) -> float: ...
    @property
    def schedule(self) -> str: ...
    @property
    def momentum(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...


def make_optimizer(settings: Rates, model: nn.Module) -> Optimizer:
    """Make the optimizer of the parameters that train."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if settings.optimizer == "adamw":
        return AdamW(parameters, lr=settings.lr, weight_decay=settings.weight_decay)
    return SGD(parameters, lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay)


def learning_rate(settings: Rates, step: int, steps: int) -> float:
    """Return the learning rate of step 1..steps: constant, or falling to zero in a line or half a cosine."""
    done = (step - 1) / steps
    match settings.schedule:
        case "linear":
            return settings.lr * (1 - done)
        case "cosine":
            return settings.lr * (1 + math.cos(math.pi * done)) / 2
        case _:
            return settings.lr


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Let the next step of every group of parameters be taken at this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate
