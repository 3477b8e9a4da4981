"""What the tests of ``groupclip.check`` share: small data, a loss, and a model made of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def images(n: int = 6, *shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, *(shape or (4,)), generator=generator)
    return x, torch.randint(0, 3, (n,), generator=generator)


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


class Made(nn.Module):
    """A model whose forward pass is a function of itself and the input, with a linear ``head``."""

    def __init__(self, forward: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        self.head, self._made = nn.Linear(4, 3), forward
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any) -> Tensor:
        return self._made(self, *args)
