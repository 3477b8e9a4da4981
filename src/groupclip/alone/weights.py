"""Trainable weights that the forward pass itself moves: it must not move them again where it runs several times.

How often it runs is told by the samples (one run for each path), and weights are released: no noise would cover that number.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..errors import UnsupportedOperation
from ..nested import has_numbers
from ..walk import name_of


class Weights:
    """The trainable weights during the runs of one pass.

    Args:
        model, modules: whose.
    """

    def __init__(self, model: nn.Module, modules: Sequence[nn.Module]) -> None:
        self._model = model
        self._held: list[tuple[nn.Module, str, Tensor, int]] = []
        self._copies: dict[int, Tensor] = {}  # of those whose memory was asked for
        with torch._C.DisableTorchFunctionSubclass():
            for module in modules:
                for name, param in module._parameters.items():
                    if param is not None and param.requires_grad and not param.is_inference():
                        self._held.append((module, name, param, param._version))

    def about_to_give_memory(self, param: Tensor) -> None:
        """Hear that the model's code asks for ``p.data``, or sets it: what is written there has no version."""
        if id(param) not in self._copies:
            with torch._C.DisableTorchFunctionSubclass():
                self._copies[id(param)] = param.detach().clone()

    def require_unmoved(self) -> None:
        """Check, before another run or after several, that the weights are as they were.

        Raises:
            UnsupportedOperation: a run moved one.
        """
        with torch._C.DisableTorchFunctionSubclass():
            for module, name, param, version in self._held:
                if param._version == version and not self._differs(param):
                    continue
                raise UnsupportedOperation(
                    f"the forward pass changes {name_of(self._model, module, name)!r}, and it must run again on this batch "
                    "(samples take different paths, or can't run at once), so it would be changed more than once. Change it "
                    "outside of forward(), after optimizer.step()"
                )

    def _differs(self, param: Tensor) -> bool:
        copy = self._copies.get(id(param))
        if copy is None or not has_numbers(param):
            return False
        return copy.shape != param.shape or not torch.equal(copy.nan_to_num(), param.detach().nan_to_num())
