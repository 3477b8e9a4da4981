"""Nothing between the clipped sum and the noise: a change of ``p.grad`` that the engine didn't make is found out.

The noise is made for sums in which one sample weighs R_m at most. A loss scaler that divides ``p.grad``, a hook that
multiplies it, or a gradient from before attach would void that, or drown the signal; so each gradient is noted as it
was left, and has to be found so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef


@dataclass(frozen=True)
class Left:
    """A gradient as it was left in ``p.grad``. It isn't kept alive: ``zero_grad`` frees it as ever.

    Attributes:
        grad: the tensor.
        version: its version then: every change in place raises it.
        released: it is private: the noise is in it.
    """

    grad: TensorWeakRef
    version: int
    released: bool

    @classmethod
    def of(cls, grad: Tensor | None, released: bool = False) -> Left | None:
        return None if grad is None else cls(TensorWeakRef(grad), grad._version, released)

    def stands(self, grad: Tensor | None) -> bool:
        """Whether ``grad`` is that gradient, unchanged."""
        return grad is not None and self.grad() is grad and grad._version == self.version


def holds_something(grad: Tensor | None) -> bool:
    """Whether there is a gradient other than zero: ``zero_grad(set_to_none=False)`` leaves zeros."""
    return grad is not None and bool(grad.detach().any())


def several_processes() -> bool:
    """Whether gradients may be averaged over processes after they were accumulated (DDP, FSDP)."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def at_the_very_end(call: Callable[[], None]) -> None:
    """Run ``call`` when the backward pass under way is complete, after what others do at its end."""
    queue = torch.autograd.Variable._execution_engine.queue_callback
    queue(lambda: queue(call))


def called_by_scaler() -> bool:
    """Whether an enabled ``GradScaler`` is stepping the optimizer. It changes gradients without raising their version."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code is torch.amp.GradScaler.step.__code__ and frame.f_locals["self"].is_enabled():
            return True
        frame = frame.f_back
    return False


def place_last(hooks: dict[int, object], key: int) -> None:
    """Make the hook the last one to run (torch runs them in the order of the dict)."""
    if next(reversed(hooks)) != key:
        hooks[key] = hooks.pop(key)


def place_first(hooks: dict[int, object], key: int) -> None:
    """Make the hook the first one to run."""
    if next(iter(hooks)) != key:
        for other in [k for k in hooks if k != key]:
            hooks[other] = hooks.pop(other)
