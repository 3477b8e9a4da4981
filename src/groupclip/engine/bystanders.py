"""Other optimizers than the engine's, which have no noise."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from ..autograd.slot import Slot
from ..autograd.tensors import PrivateParameter
from ..errors import PrivacyViolation


class Bystanders:
    """Hook before the step of any optimizer: one that isn't the engine's must not move private parameters.

    Args:
        slots: the private parameters.
        optimizer: the engine's. While it steps, parameters are shown as plain ones, so optimizers inside it are free to step.
    """

    def __init__(self, slots: Sequence[Slot], optimizer: Optimizer) -> None:
        # Weak, because this hook is on all optimizers and outlives an engine that is dropped.
        self._slots, self._optimizer = weakref.WeakSet(slots), weakref.ref(optimizer)
        self._shards = {id(slot.moved): weakref.ref(slot) for slot in slots if slot.kept is not slot.param}

    def __call__(self, optimizer: Optimizer, *_: Any) -> None:
        if optimizer is self._optimizer():
            return
        with torch._C.DisableTorchFunctionSubclass():
            for param in [p for group in optimizer.param_groups for p in group["params"]]:
                slot = param._slot if isinstance(param, PrivateParameter) else None
                if id(param) in self._shards:
                    slot = self._shards[id(param)]()
                if slot is not None and slot in self._slots and param.grad is not None:
                    raise PrivacyViolation(
                        f"an optimizer that wasn't attached ({type(optimizer).__name__}) is about to move parameter "
                        f"{slot.name!r} without noise: attach the optimizer that steps, or detach the engine first"
                    )
