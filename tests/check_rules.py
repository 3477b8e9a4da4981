"""What tests of the rules share: numbers from seeds, and a function of parameters as a model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from groupclip.norms import GRAM, INSTANTIATED

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
