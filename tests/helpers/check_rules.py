"""What tests of the rules share: numbers from seeds, and a function of parameters as a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

import groupclip as gc
from groupclip.autograd.operation import SLOW, VMAP
from groupclip.engine.engine import Engine
from groupclip.persample.norms import GRAM, INSTANTIATED

B = 3
METHODS = [GRAM, INSTANTIATED]


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def ids(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(7))


class Calls(nn.Module):
    """A function of the inputs and of parameters, as a model."""

    def __init__(self, function: Callable[..., Tensor], **parameters: Tensor) -> None:
        super().__init__()
        self.function, self.names = function, list(parameters)
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, *inputs: Tensor) -> Tensor:
        return torch.tanh(self.function(*inputs, *(self.get_parameter(name) for name in self.names)))


class Uses:
    """An observer: which operations went which way, and how each parameter was normed."""

    def __init__(self) -> None:
        self.ways: dict[str, set[str]] = {}
        self.methods: dict[str, str] = {}

    def used(self, parameters: Sequence[str], operation: str, way: str) -> None:
        self.ways.setdefault(operation, set()).add(way)

    def normed(self, parameter: str, method: str) -> None:
        self.methods[parameter] = method


@contextmanager
def observed(model: nn.Module, batch: tuple[Tensor, ...]) -> Iterator[tuple[Engine, Uses]]:
    """An engine that has seen one pass over the batch, and an observer of what comes."""
    engine = gc.attach(model, None, "param-wise", None)
    try:
        with torch.no_grad():
            model(*batch)
        model(*batch)
        uses = Uses()
        engine._tape.observer = uses
        yield engine, uses
    finally:
        engine.detach()


def slow_operations(model: nn.Module, batch: tuple[Tensor, ...]) -> set[str]:
    """The operations that no rule splits: exact, but one sample at a time."""
    with observed(model, batch) as (_, uses):
        model(*batch)
    return {name for name, ways in uses.ways.items() if ways & {VMAP, SLOW}}
