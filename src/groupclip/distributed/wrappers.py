"""What stands around a model that several devices train: what can be used, and what is refused, by name."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..errors import PrivacyViolation, UnsupportedOperation

_ALTERNATIVE = (
    "use torch.nn.parallel.DistributedDataParallel, or torch.distributed.fsdp.fully_shard for models that don't fit one "
    "device"
)


def check_wrappers(model: nn.Module) -> None:
    """Refuse what runs a model on several devices in a way that groupclip doesn't know.

    Raises:
        UnsupportedOperation: names it, and what to use.
    """
    for name, module in model.named_modules():
        found = _refused(module) or (
            "DistributedDataParallel around a part of the model" if name and is_ddp(module) else ""
        )
        if found:
            where = f"module {name!r}" if name else "the model"
            more = "wrap the whole model" if is_ddp(module) else _ALTERNATIVE
            raise UnsupportedOperation(
                f"{where} is {found}: groupclip doesn't know where its gradients are summed, so what one sample weighs in them "
                f"isn't known either; {more}"
            )


def _refused(module: nn.Module) -> str:
    if isinstance(module, nn.DataParallel) and len(module.device_ids) > 1:
        return "nn.DataParallel on several devices"
    for cls in type(module).__mro__:
        library = cls.__module__.partition(".")[0]
        if library in ("deepspeed", "fairscale", "colossalai"):
            return f"{library}'s {cls.__name__}"
    fsdp = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    if fsdp is not None and isinstance(module, fsdp.FullyShardedDataParallel):
        return "FullyShardedDataParallel (FSDP1, which hides parameters in flat ones)"
    return ""


def is_ddp(module: nn.Module) -> bool:
    return isinstance(module, DistributedDataParallel)


class OutOfStep:
    """Keeps DistributedDataParallel from averaging, by its own ``no_sync``, while an engine sums over ranks itself, once a step.

    Its average after each backward pass would wait for ranks that have fewer micro-batches, and round sums without noise.

    Args:
        ddp: the wrapper.

    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = ddp
        self._no_sync: Any = ddp.no_sync()
        self._no_sync.__enter__()
        self._synced_buffers = ddp.require_forward_param_sync
        ddp.require_forward_param_sync = False
        self._handle = ddp.register_forward_pre_hook(_check_call)

    def remove(self) -> None:
        """Let it average again."""
        self._handle.remove()
        self._no_sync.__exit__(None, None, None)
        self._ddp.require_forward_param_sync = self._synced_buffers


def check_ddp(ddp: Any) -> None:
    """Refuse a DistributedDataParallel that would act on gradients otherwise than by its average, or on those of some processes.

    Raises:
        UnsupportedOperation: names what it was made with.
    """
    if ddp.mixed_precision is not None:
        raise UnsupportedOperation(
            "DistributedDataParallel(mixed_precision=..) runs the model on copies of its parameters, which nobody clips: use "
            "torch.autocast, or fully_shard with a MixedPrecisionPolicy"
        )
    if ddp.static_graph:
        raise UnsupportedOperation(
            "DistributedDataParallel(static_graph=True) counts on its own average in every pass, and groupclip sums over ranks "
            "itself: leave static_graph out; unused parameters need nothing"
        )
    if ddp._comm_hooks:
        raise UnsupportedOperation(
            "DistributedDataParallel has a communication hook (register_comm_hook), which would never be called: groupclip sums "
            "over ranks itself, in float32 or better. Make the wrapper anew without it"
        )
    if torch.distributed.get_world_size(ddp.process_group) != torch.distributed.get_world_size():
        raise UnsupportedOperation(
            "DistributedDataParallel was made with a process_group of some processes, and groupclip sums over all of them: leave "
            "process_group out"
        )


def _check_call(ddp: Any, _: Any) -> None:
    if torch.is_grad_enabled() and ddp.require_backward_grad_sync:
        raise PrivacyViolation(
            "DistributedDataParallel was told to average gradients (require_backward_grad_sync), though the attached engine sums "
            "over ranks, once a step: leave it to the engine; no_sync() may be used, and changes nothing"
        )
    if ddp._join_config.enable:
        raise UnsupportedOperation(
            "DistributedDataParallel.join() stands in for ranks that ran out of data, and groupclip's ranks never do: draw batches "
            "by groupclip.logical_batches, whose every step all ranks take, and leave join out"
        )


def check_nobody_averages() -> None:
    """Refuse a call of the model through a wrapper that averages gradients and that the engine doesn't know of.

    Raises:
        PrivacyViolation: DistributedDataParallel was made after attach, or attach was given what is inside of it.
    """
    active: Any = DistributedDataParallel._get_active_ddp_module()
    if active is not None and active.require_backward_grad_sync:
        raise PrivacyViolation(
            "the model is called through a DistributedDataParallel that isn't the attached model, so sums would be averaged "
            "before they have noise. The order is: ddp = DistributedDataParallel(model), then engine = groupclip.attach(ddp, ..)"
        )


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model in a DistributedDataParallel; names of parameters are those that one process has."""
    return model.module if isinstance(model, DistributedDataParallel) else model
