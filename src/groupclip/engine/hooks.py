"""What stands on the model and the optimizer while an engine is attached to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..autograd.slot import Slot
from ..autograd.tensors import PrivateParameter
from .bystanders import Bystanders
from .checks import refuse_batch_statistics
from .step import PrivateStep


def hooks_on_model(model: nn.Module, slots: Sequence[Slot]) -> list[Any]:
    """See every gradient that comes to the parameters, and refuse statistics of a batch. The handles take the hooks off."""
    keepers = [m for m in model.modules() if isinstance(m, (_BatchNorm, _InstanceNorm))]
    return [
        *(handle for slot in slots for handle in slot.hook()),
        *(m.register_forward_pre_hook(refuse_batch_statistics) for m in keepers),
    ]


def hooks_on_optimizer(optimizer: Optimizer, slots: Sequence[Slot], step: PrivateStep, *, private: bool) -> list[Any]:
    """Make its steps those of ``step``; where they are ``private``, refuse steps of other optimizers on the same parameters."""
    others = [register_optimizer_step_pre_hook(Bystanders(slots, optimizer))] if private else []
    return [
        *others,
        optimizer.register_step_pre_hook(_on_plain_tensors(step.before)),
        optimizer.register_step_post_hook(_on_plain_tensors(step.after)),
    ]


def _on_plain_tensors(hook: Callable[..., None]) -> Callable[..., None]:
    """Return the hook, with private parameters as the plain tensors that they are: nothing in it is of a sample."""

    def plainly(*args: Any, **kwargs: Any) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            hook(*args, **kwargs)

    return plainly


def show_private(slots: Sequence[Slot]) -> None:
    """Give the parameters the class by which their uses are seen, wherever they lost it."""
    with torch._C.DisableTorchFunctionSubclass():
        for slot in slots:
            if type(slot.param) is not PrivateParameter or slot.param._slot is not slot:
                slot.param.__class__ = PrivateParameter
                slot.param._slot = slot  # pyright: ignore[reportAttributeAccessIssue]
            if slot.param._cdata != slot.hooked:
                slot.keep_hooks()


def show_plain(slots: Sequence[Slot]) -> None:
    """Show plain parameters for the step: optimizers take their fused path for these only."""
    for slot in slots:
        slot.param.__class__ = nn.Parameter


def restore(slots: Sequence[Slot]) -> None:
    """Make the parameters what they were. Gradients are cleared: without a step they have no noise."""
    for slot in slots:
        slot.param.__class__ = nn.Parameter
        del slot.param._slot  # pyright: ignore[reportAttributeAccessIssue]
        slot.kept.grad = None
