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
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..distributed.shards import local
from ..errors import CoverageError, PrivacyViolation
from ..nested import has_numbers

if TYPE_CHECKING:
    from .gate import Group


class Left(NamedTuple):
    """A gradient as it was left in ``p.grad``. It isn't kept alive: ``zero_grad`` frees it as ever.

    Attributes:
        grad: the tensor. To be compared with, never to be used: torch may keep a tensor whose Python object nobody has.
        version: its version then: every change in place raises it.
        released: it is private: the noise is in it.
    """

    grad: weakref.ref[Tensor]
    version: int
    released: bool


def _alike(x: Tensor, y: Tensor) -> bool:
    return not has_numbers(x) or torch.equal(x.nan_to_num(), y.nan_to_num())


def holds_something(grad: Tensor | None) -> bool:
    """Return whether there is a gradient other than zero: ``zero_grad(set_to_none=False)`` leaves zeros."""
    return grad is not None and bool(local(grad).detach().any())


def several_processes() -> bool:
    """Return whether gradients may be averaged over processes after they were accumulated (DDP, FSDP)."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def at_the_very_end(call: Callable[[], None]) -> None:
    """Run ``call`` when the backward pass under way is complete, after what others do at its end."""
    queue = torch.autograd.Variable._execution_engine.queue_callback
    queue(lambda: queue(call))


def called_by_scaler() -> bool:
    """Return whether an enabled ``GradScaler`` is stepping the optimizer. It changes gradients without raising their version."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code is torch.amp.GradScaler.step.__code__ and frame.f_locals["self"].is_enabled():
            return True
        frame = frame.f_back
    return False


def place_last(hooks: dict[int, object], key: int) -> None:
    """Make the hook the last one to run (torch runs them in the order of the dict)."""
    hooks[key] = hooks.pop(key)


def place_first(hooks: dict[int, object], key: int) -> None:
    """Make the hook the first one to run."""
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
        length: of that, if it was taken: ``.data`` and NumPy change numbers without another version.
        kept: what this process keeps of the parameter and its gradient between passes: itself, or a shard of it.
        moved: what the optimizer moves.
    """

    name: str
    param: nn.Parameter
    group: Group
    method: str
    delivered: Tensor | None = None
    left: Left | None = None
    length: Tensor | None = None
    keeps_wide: bool = False
    wide: Tensor | None = None
    _arriving: Tensor | None = None
    _version: int = 0  # of what was delivered
    _copy: Tensor | None = None  # of it, where other hooks see it
    _handles: tuple[RemovableHandle, ...] = ()
    hooked: int = 0  # the tensor inside the parameter that the hooks are on
    kept: Any = None
    moved: Any = None

    def __post_init__(self) -> None:
        self.moved = self.param if self.kept is None else self.kept.param
        if self.kept is None:
            self.kept = self.param

    def stand_in(self) -> Tensor:
        """Return a leaf with the parameter's value."""
        return self.param.detach().requires_grad_(True)

    def hook(self) -> tuple[RemovableHandle, ...]:
        """See every gradient that comes to the parameter. The handles take the hooks off."""
        itself = weakref.ref(self)  # the garbage collector doesn't see through hooks of this kind

        def after(param: Tensor) -> None:
            slot = itself()
            if slot is not None:
                slot.landed(param)

        self._handles = (
            self.param.register_hook(self.witness),
            self.param.register_post_accumulate_grad_hook(after),
        )
        self.hooked = self.param._cdata
        return self._handles

    def keep_hooks(self) -> None:
        """Keep the hooks: ``torch.utils.swap_tensors`` puts another tensor into the parameter; autograd misses its hooks."""
        param: Any = self.param
        self.hooked = param._cdata
        param._backward_hooks = param._backward_hooks  # setting them tells autograd
        param._post_accumulate_grad_hooks = param._post_accumulate_grad_hooks

    def sum_in(self, grad: Tensor) -> Tensor:
        """Return what ``grad``, found in ``p.grad``, stands for: the wider sum beside it, unless it was cleared since.

        ``zero_grad(set_to_none=False)`` clears ``p.grad`` alone: the wide sum is of samples that were given up then.
        """
        left = self.left
        if self.wide is None or left is None or left.released or left.grad() is not grad or left.version != grad._version:
            return grad
        return self.wide

    def deliver(self, total: Tensor) -> Tensor:
        """Return the gate's clipped sum, on its way to the parameter. Other hooks, whenever they came, run between ours."""
        own = self.param.dtype
        if total.dtype != own:
            self._arriving = total if self.keeps_wide else None
            total = total.to(own)
        self.delivered, self._version, self._copy = total, total._version, None
        if self._handles:
            witness, landed = self._handles
            param: Any = self.param
            before, after = param._backward_hooks, param._post_accumulate_grad_hooks
            if len(before) > 1:
                self._copy = total.clone()
            if next(reversed(before)) != witness.id:
                place_last(before, witness.id)
            if next(iter(after)) != landed.id:
                place_first(after, landed.id)
        return total

    def forget_delivery(self) -> None:
        """Forget what was delivered: the backward pass failed on the way."""
        self.delivered = self._arriving = self._copy = None

    def landed(self, param: Tensor) -> None:
        """Hook on the parameter, after its gradient was accumulated: note it."""
        if (arriving := self._arriving) is not None:
            self._arriving = None
            onto = self.wide if self.left is not None and not self.left.released else None
            self.wide = arriving if onto is None else onto.add_(arriving)
        with torch._C.DisableTorchFunctionSubclass():
            grad = param.grad
            others = len(self.param._post_accumulate_grad_hooks or ()) > 1  # pyright: ignore[reportAttributeAccessIssue]
        self.left = None if grad is None else Left(weakref.ref(grad), grad._version, released=False)
        self.length = grad.detach().norm() if grad is not None and others else None

    def witness(self, grad: Tensor) -> None:
        """Hook on the parameter: nothing but the gate's clipped sum may become its gradient."""
        delivered, self.delivered, copy, self._copy = self.delivered, None, self._copy, None
        ours = delivered is not None and grad is delivered  # where parameters are cut over ranks, None comes
        if ours and (grad._version != self._version or (copy is not None and not _alike(copy, grad))):
            raise PrivacyViolation(
                f"a hook on parameter {self.name!r} changed its clipped gradient in place, before it had noise; such a hook may "
                "look at gradients and no more"
            )
        if grad is not delivered:
            raise CoverageError(
                f"a gradient reached parameter {self.name!r} that was not clipped: the parameter is used by an operation "
                "that groupclip can't see (a custom autograd.Function or compiled code called with it), or the pass was made "
                "before attach. Use ordinary torch operations on the parameter, or freeze it with requires_grad_(False) before "
                "attaching; a pass from before attach has to be made again"
            )
