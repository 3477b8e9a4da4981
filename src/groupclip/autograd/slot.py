"""Nothing between the clipped sum and the noise: a change of ``p.grad`` that the engine didn't make is found out.

The noise is made for sums in which one sample weighs R_m at most. A loss scaler that divides ``p.grad``, a hook that
multiplies it, or a gradient from before attach would void that, or drown the signal; so each gradient is noted as it
was left, and has to be found so.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import TensorWeakRef

from ..errors import CoverageError

if TYPE_CHECKING:
    from .gate import Group


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


@dataclass(eq=False)
class Slot:
    """One private parameter: its name, its group, and the gradient that the gate has just handed to autograd.

    Attributes:
        keeps_wide: noise is to come. The sums of a half-precision parameter are kept beside ``p.grad`` then: rounded before the
            noise, they would tell far more of one sample than its threshold.
        wide: the sum so far, in float32; None where ``p.grad`` holds it as it is.
        left: what the engine left in ``p.grad``.
    """

    name: str
    param: nn.Parameter
    group: Group
    method: str
    delivered: Tensor | None = None
    left: Left | None = None
    keeps_wide: bool = False
    wide: Tensor | None = None
    _arriving: Tensor | None = None
    _handles: tuple[RemovableHandle, ...] = ()
    _hooked: int = 0  # the tensor inside the parameter that the hooks are on

    def hook(self) -> tuple[RemovableHandle, ...]:
        """See every gradient that comes to the parameter. The handles take the hooks off."""
        landed = weakref.WeakMethod(self.landed)  # the garbage collector doesn't see through hooks of this kind

        def after(param: Tensor) -> None:
            call = landed()
            if call is not None:
                call(param)

        self._handles = (
            self.param.register_hook(self.witness),
            self.param.register_post_accumulate_grad_hook(after),
        )
        self._hooked = self.param._cdata
        return self._handles

    def keep_hooks(self) -> None:
        """``torch.utils.swap_tensors`` puts another tensor into the parameter, and autograd doesn't know its hooks."""
        param: Any = self.param
        if param._cdata != self._hooked:
            self._hooked = param._cdata
            param._backward_hooks = param._backward_hooks  # setting them tells autograd
            param._post_accumulate_grad_hooks = param._post_accumulate_grad_hooks

    def sum_in(self, grad: Tensor) -> Tensor:
        """What ``grad``, found in ``p.grad``, stands for: the wider sum beside it, unless it was cleared since.

        ``zero_grad(set_to_none=False)`` clears ``p.grad`` alone: the wide sum is of samples that were given up then.
        """
        if self.wide is None or self.left is None or self.left.released or not self.left.stands(grad):
            return grad
        return self.wide

    def deliver(self, total: Tensor) -> Tensor:
        """The gate's clipped sum, on its way to the parameter. Other hooks, whenever they came, run between ours."""
        self._arriving = total if self.keeps_wide and total.dtype != self.param.dtype else None
        total = total.to(self.param.dtype)
        self.delivered = total
        if self._handles:
            witness, landed = self._handles
            with torch._C.DisableTorchFunctionSubclass():
                place_last(self.param._backward_hooks, witness.id)  # pyright: ignore[reportArgumentType]
                place_first(self.param._post_accumulate_grad_hooks, landed.id)  # pyright: ignore[reportAttributeAccessIssue]
        return total

    def forget_delivery(self) -> None:
        """The backward pass failed on the way."""
        self.delivered = self._arriving = None

    def landed(self, param: Tensor) -> None:
        """Hook on the parameter, after its gradient was accumulated: note it."""
        arriving, self._arriving = self._arriving, None
        if arriving is not None:
            onto = self.wide if self.left is not None and not self.left.released else None
            self.wide = arriving if onto is None else onto.add_(arriving)
        self.note(param)
        if several_processes():
            at_the_very_end(lambda: self.note(param))

    def note(self, param: Tensor) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            self.left = Left.of(param.grad)

    def witness(self, grad: Tensor) -> None:
        """Hook on the parameter: nothing but the gate's clipped sum may become its gradient."""
        delivered, self.delivered = self.delivered, None
        if grad is not delivered:
            raise CoverageError(
                f"a gradient reached parameter {self.name!r} that was not clipped: the parameter is used by an operation "
                "that groupclip can't see (a custom autograd.Function or compiled code called with it), or the pass was made "
                "before attach. Use ordinary torch operations on the parameter, or freeze it with requires_grad_(False) before "
                "attaching; a pass from before attach has to be made again"
            )
