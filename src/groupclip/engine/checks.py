"""What may be attached, and what is refused before anything is changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.optim import Optimizer

from ..autograd.slot import holds_something
from ..autograd.tensors import PrivateParameter
from ..distributed.shards import is_sharded
from ..errors import CoverageError, GroupClipError, PrivacyViolation, UnsupportedOperation
from ..privacy.mechanism import Mechanism
from ..privacy.planned import noise_multiplier
from ..rules.normalisation import BATCH_STATISTICS, RUNNING_STATISTICS
from ..walk import each_module, name_of


def refuse_batch_statistics(module: nn.Module, _: Any) -> None:
    """Refuse, as a forward pre-hook, normalisation layers that were put in training mode after attach."""
    problem = statistics_problem(module)
    if problem is not None and torch.is_grad_enabled():
        raise PrivacyViolation(f"{type(module).__name__}: {problem}")


def statistics_problem(module: nn.Module) -> str | None:
    """Say why a layer that keeps statistics of the data can't train privately as it is; None if it can."""
    if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
        return BATCH_STATISTICS
    if isinstance(module, _InstanceNorm) and module.training and module.track_running_stats:
        return RUNNING_STATISTICS
    return None


def check_modules(model: nn.Module) -> None:
    for name, module in model.named_modules():
        problem = statistics_problem(module)
        if problem is not None:
            raise PrivacyViolation(f"module {name!r} is {type(module).__name__} in training mode: {problem}")
        if isinstance(module, torch.jit.ScriptModule) and any(p.requires_grad for p in module.parameters()):
            raise UnsupportedOperation(
                f"{f'module {name!r}' if name else 'the model'} was scripted or traced by torch.jit, which hides what it does with "
                "its parameters: attach the eager module that it was made from (torch.jit.script it after engine.detach()), or "
                "freeze its parameters (p.requires_grad_(False))"
            )


def check_arguments(loss_reduction: str, mechanism: Mechanism | None, optimizer: Optimizer | None) -> None:
    if loss_reduction not in ("none", "mean", "sum"):
        raise ValueError(f"loss_reduction={loss_reduction!r} must be 'none', 'mean' or 'sum'")
    if mechanism is None:
        return
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"mechanism is {type(mechanism).__name__}; it must be a groupclip.Mechanism or None")
    noise_multiplier(mechanism)
    if mechanism.unit == "client":
        raise ValueError(
            "the mechanism was planned for unit='client', and an engine clips the gradients of samples or users: average clients' "
            "updates by groupclip.federated.PrivateAverage, or plan for the samples of one client"
        )
    if optimizer is None:
        raise ValueError(
            "a mechanism without an optimizer: noise is added when the optimizer steps; pass the optimizer, or mechanism=None to "
            "clip only"
        )


def check_parameters(named: Mapping[str, nn.Parameter]) -> None:
    with torch._C.DisableTorchFunctionSubclass():  # a deep copy of an attached model has private parameters
        for name, param in named.items():
            _check_parameter(name, param)


def _check_parameter(name: str, param: nn.Parameter) -> None:
    if isinstance(param, PrivateParameter) and param._slot is not None:
        raise GroupClipError(f"parameter {name!r} is attached already: call detach() on the engine that holds it first")
    if type(param) not in (nn.Parameter, PrivateParameter) and not is_sharded(param):
        raise CoverageError(
            f"parameter {name!r} is a {type(param).__name__}, a subclass of Parameter with its own behaviour, which groupclip "
            "can't follow; use a plain nn.Parameter or freeze it"
        )
    if not param.is_floating_point():
        raise CoverageError(
            f"parameter {name!r} has dtype {param.dtype}: only real floating point parameters can be clipped. Freeze it, or hold "
            "its real and imaginary parts as one real parameter (torch.view_as_complex(p) in the forward pass)"
        )
    if param.numel() == 0:
        raise CoverageError(f"parameter {name!r} has no elements, so nothing of it can train: freeze it with requires_grad_(False)")
    if param.is_inference():
        raise CoverageError(
            f"parameter {name!r} was made under torch.inference_mode(), so it can't be trained: build or copy the model outside"
        )
    if holds_something(param.grad):
        raise PrivacyViolation(
            f"parameter {name!r} holds a gradient from before, which wasn't clipped: clear it (optimizer.zero_grad() or "
            "model.zero_grad()) before attaching"
        )


def check_whole(named: Mapping[str, nn.Parameter]) -> None:
    """Check, for clipping alone, that no parameter is cut over ranks: it is the step that knows all of them."""
    for name, param in named.items():
        if is_sharded(param):
            raise UnsupportedOperation(
                f"parameter {name!r} is cut over ranks, and clipping alone (mechanism=None) is for whole ones: attach with a "
                "mechanism (noise_multiplier=0 adds no noise), or before fully_shard to look at norms"
            )


def check_optimizer(
    optimizer: Optimizer, named: Mapping[str, nn.Parameter], frozen: Collection[nn.Parameter] = ()
) -> None:
    """Check that the optimizer moves the private parameters and nothing else.

    Args:
        optimizer: the optimizer.
        named: the private parameters that train.
        frozen: private parameters that don't, at the moment.
    """
    if "_optimizer_step_pre_hooks" not in vars(optimizer):
        raise TypeError(
            f"optimizer is {type(optimizer).__name__}, a wrapper around another: its steps can't be seen. Attach the torch "
            "optimizer itself, and wrap it afterwards: accelerator.prepare(model, optimizer) after "
            "groupclip.attach(model, optimizer, ..)"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise PrivacyViolation(
            "LBFGS evaluates the gradient several times in a step, each without noise: use another optimizer"
        )
    held = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    ours = {id(p): n for n, p in named.items()}
    foreign = [p for i, p in held.items() if i not in ours and p.requires_grad]
    if foreign:
        raise CoverageError(
            f"the optimizer holds {len(foreign)} trainable parameters that are not the model's (first shape "
            f"{tuple(foreign[0].shape)}): they would be updated without clipping and noise. Build the optimizer from the "
            "attached model's parameters (after any change to the model), or freeze the others"
        )
    known = ours.keys() | {id(p) for p in frozen}
    stale = [p for i, p in held.items() if i not in known and holds_something(p.grad)]
    if stale:
        raise CoverageError(
            f"the optimizer holds {len(stale)} frozen parameters with a gradient (first shape {tuple(stale[0].shape)}): it would "
            "apply that without clipping and noise. Set it to None, or leave frozen parameters out of the optimizer"
        )
    missing = [n for i, n in ours.items() if i not in held]
    if missing:
        raise CoverageError(
            f"trainable parameters are not in the optimizer: {', '.join(missing[:5])}{' ..' if len(missing) > 5 else ''}. They "
            "would cost noise and never change: add them to the optimizer, or freeze them with requires_grad_(False)"
        )


def check_losses(losses: Tensor, batch: int, shapes: Sequence[tuple[int, ...]] = ()) -> None:
    """Check that there is one loss for each of ``batch`` samples, with gradients recorded.

    Args:
        losses: per sample.
        batch: B.
        shapes: of the tensors that the model was called with; B was read off the first.

    Raises:
        TypeError, ValueError: anything else.
    """
    if not isinstance(losses, Tensor):
        raise TypeError(f"losses is {type(losses).__name__}; engine.backward takes a tensor [B] of per-sample losses")
    shape = tuple(losses.shape)
    if losses.dim() != 1:
        if losses.dim() == 0:
            hint = "pass reduction='none' to the loss function"
        elif losses.dim() == 2 and shape[1] == 1:
            hint = "use losses.squeeze(1)"
        elif shape == (batch, batch):
            hint = (
                "maybe every output met every target, as outputs [B, 1] and targets [B] do: give both one shape. If each "
                "sample has B entries of its own, use losses.mean(1)"
            )
        elif shape[0] != batch or _differ(batch, shapes):
            words = _hint(shape[0], batch, shapes) if _differ(batch, shapes) else _source(shapes)
            hint = f"put the {batch} samples in front (losses.movedim(k, 0)), then take the mean of each one's own{words}"
        else:
            hint = "reduce each sample's entries, e.g. losses.flatten(1).mean(1)"
        raise ValueError(f"losses has shape {shape}, but engine.backward takes one loss per sample, shape [B]: {hint}")
    if not losses.requires_grad:
        raise ValueError("losses don't require grad: they were computed under no_grad, or from no trainable parameter")
    if len(losses) != batch:
        raise ValueError(
            f"losses has {len(losses)} entries, but the model was last called with {batch} samples: give one loss per "
            f"sample{_hint(len(losses), batch, shapes)}"
        )


def _source(shapes: Sequence[tuple[int, ...]]) -> str:
    """Return where the number of samples was read."""
    if not shapes:
        return ""
    others = ", ".join(map(str, shapes[1:4])) + (" .." if len(shapes) > 4 else "")
    return f". Samples are dimension 0 of the first tensor, here of shape {shapes[0]}{f'; others: {others}' if others else ''}"


def where_read(batch: int, shapes: Sequence[tuple[int, ...]]) -> str:
    """Return where the number of samples was read, and what to do if it shouldn't have been."""
    return _source(shapes) + (_OTHERS if _differ(batch, shapes) else "")


_OTHERS = (
    ". The tensors differ in their first dimension: call the model with one whose rows are the samples in front "
    "(prompt.expand(len(x), -1) for what is the same for all, pad_sequence for a list of samples of unequal length)"
)


def _differ(batch: int, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Return whether the first tensor may not have been the batch."""
    return any(shape[0] not in (batch, 1) for shape in shapes)


def _hint(losses: int, batch: int, shapes: Sequence[tuple[int, ...]]) -> str:
    """Say what to do about so many losses. No advice makes one sample of several: those of one batch are alike in length."""
    source = _source(shapes)
    if _differ(batch, shapes):
        return source + _OTHERS
    each, rest = divmod(losses, batch) if batch else (0, 1)
    if rest == 0 and each > 1 and batch > 1:
        return (
            f". If every sample has {each} in turn (a language model's tokens), take the mean of each sample's own: "
            f"losses.view({batch}, -1).mean(1), or weighed by its mask, (losses.view({batch}, -1) * mask).sum(1) / mask.sum(1)"
            f"{source}"
        )
    parts, left = divmod(batch, losses) if losses else (0, 1)
    if left == 0 and parts > 1 and losses > 1:
        return (
            f". If each sample has {parts} rows in what the model was called with (torch.cat of {parts} views, say), call it "
            f"once for each, or attach a module that takes them all and joins them in its forward pass{source}"
        )
    return source


def check_loss_scale(scale: float, dtype: torch.dtype) -> None:
    """Check for a positive number that losses of that dtype can be multiplied by.

    Raises:
        TypeError, ValueError: anything else.
    """
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"loss_scale is {type(scale).__name__}; it must be a number, fixed before the run")
    if not 0 < scale <= torch.finfo(dtype).max:
        raise ValueError(
            f"loss_scale={scale:g} must be positive and at most {torch.finfo(dtype).max:g}, the largest number of {dtype} losses; "
            "use a smaller one, or cast the losses to float32"
        )


def check_caller(module: nn.Module) -> None:
    """Refuse calls of the attached model in which its parameters, or its samples, are hidden in other tensors.

    Raises:
        UnsupportedOperation: a replica of nn.DataParallel, or a transform of torch.func around the model.
    """
    if getattr(module, "_is_replica", False):  # torch's own mark
        raise UnsupportedOperation(
            "the model runs as a replica of nn.DataParallel, whose parameters are copies: use one device, or "
            "torch.nn.parallel.DistributedDataParallel"
        )
    if torch._C._functorch.peek_interpreter_stack() is not None:  # pyright: ignore[reportAttributeAccessIssue]
        raise UnsupportedOperation(
            "the model is called inside a transform of torch.func (vmap, grad, jacrev ..), which hides samples and parameters: "
            "call it on the whole batch and give engine.backward the losses, or do this under torch.no_grad()"
        )


def check_coverage(model: nn.Module, known: Collection[int] = ()) -> None:
    """Refuse a parameter that became trainable, or came into the model, after attach. ``known``: ids of those cut over ranks."""
    with torch._C.DisableTorchFunctionSubclass():
        foreign = [
            (module, key)
            for module in each_module(model)
            for key, param in module._parameters.items()
            if param is not None and type(param) is not PrivateParameter and param.requires_grad and id(param) not in known
        ]
    for module, key in foreign:
        if is_sharded(module._parameters[key]):
            raise CoverageError(
                f"parameter {name_of(model, module, key)!r} was cut over ranks after attach. The order is: fully_shard(model), "
                "then the optimizer, then engine = groupclip.attach(model, optimizer, ..)"
            )
        raise CoverageError(
            f"parameter {name_of(model, module, key)!r} is trainable but in no group: it was unfrozen, added or replaced after "
            "attach. Freeze it, or detach the engine and attach again with a new partition: what was spent stays spent, and the "
            "next statement tells it"
        )
