"""Accelerate: ``prepare`` before or after, bf16 by autocast, and no backward pass without clipping.

``accelerator.prepare`` may come before ``attach`` (of this module) or after it. Logical batches of groupclip pass through it as
they are: it shards loaders of torch alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn
from torch.optim import Optimizer

from ..autograd.tensors import PrivateParameter
from ..clipping.adaptive import Adaptive
from ..clipping.functions import ClipFunction
from ..engine.attach import attach as attach_engine
from ..engine.engine import Engine
from ..errors import PrivacyViolation
from ..noise.sources import NoiseSource
from ..partition.groups import Partition
from ..privacy.mechanism import Mechanism
from ..privacy.thresholds import Thresholds

_INSTEAD = {
    "backward": (
        "the backward pass of one number for the whole batch, in which samples can't be told apart. Compute one loss a sample "
        "(reduction='none') and call engine.backward(losses)"
    ),
    "clip_grad_norm_": (
        "gradients of samples are clipped already, and the noise is made for their sum. Leave the call out; thresholds= of attach "
        "says how long a sample's gradient may be"
    ),
    "clip_grad_value_": (
        "gradients of samples are clipped already, and the noise is made for their sum. Leave the call out; thresholds= of attach "
        "says how long a sample's gradient may be"
    ),
}


def attach(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Optimizer,
    groups: Partition | str | Mapping[str, str] | Callable[[str], str],
    mechanism: Mechanism | None,
    *,
    clip: str | ClipFunction = "automatic",
    thresholds: Thresholds | Adaptive = 1.0,
    allocation: str | Mapping[str, float] = "equal",
    noise: NoiseSource | None = None,
) -> Engine:
    """Make a model and an optimizer train privately, as :func:`groupclip.attach` does, before or after ``accelerator.prepare``.

    Args:
        accelerator: of one process, without a scaler of gradients and without accumulation.
        model, optimizer: as they are, or as ``accelerator.prepare`` returned them.
        groups, mechanism, clip, thresholds, allocation, noise: as for :func:`groupclip.attach`.

    From then on ``accelerator.backward`` and its clipping of gradients raise, until the engine is detached.

    Raises:
        PrivacyViolation: several processes, a scaler (float16), or accumulation of gradients by the accelerator.
        CoverageError, ValueError, TypeError: as groupclip.attach; nothing is changed then.
    """
    check_accelerator(accelerator)
    engine = attach_engine(
        accelerator.unwrap_model(model), unwrapped(optimizer), groups, mechanism,
        clip=clip, thresholds=thresholds, allocation=allocation, noise=noise,
    )  # fmt: skip
    guard(accelerator, engine)
    return engine


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """Return torch's own optimizer, which ``accelerator.prepare`` wraps."""
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


def check_accelerator(accelerator: Accelerator) -> None:
    """Check that a step of the accelerator is one step of the plan.

    Raises:
        PrivacyViolation: it isn't.
    """
    if accelerator.num_processes > 1:
        raise PrivacyViolation(
            f"accelerate runs {accelerator.num_processes} processes, each of which would draw batches and add noise: as many noisy "
            "sums a step, of which the plan counts one. Start one process (accelerate launch --num_processes 1)"
        )
    if accelerator.scaler is not None:
        raise PrivacyViolation(
            f"mixed_precision={accelerator.mixed_precision!r} brings a scaler, which divides gradients after they were clipped and "
            "skips steps by looking at gradients without noise. Use mixed_precision='bf16', or 'no'"
        )
    if accelerator.gradient_accumulation_steps != 1:
        raise PrivacyViolation(
            f"gradient_accumulation_steps={accelerator.gradient_accumulation_steps} leaves steps of the optimizer out, and each "
            "logical batch needs one. Leave it at 1: a logical batch comes in micro-batches already "
            "(gc.poisson_batches(.., microbatch=..)), and its size is the mechanism's expected_batch_size"
        )


def guard(accelerator: Accelerator, engine: Engine) -> None:
    """Make the accelerator refuse what would go past the engine, as long as the engine is attached."""
    for name, why in _INSTEAD.items():
        setattr(accelerator, name, _Refused(name, why, getattr(accelerator, name), engine))


class _Refused:
    """Stands in the place of a method: raises while the engine is attached, and is the method afterwards."""

    def __init__(self, name: str, why: str, method: Callable[..., Any], engine: Engine) -> None:
        self._name, self._why, self._engine = name, why, engine
        self._method = method._method if isinstance(method, _Refused) else method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(p, PrivateParameter) for p in self._engine.model.parameters()):
            self._refuse()
        return self._method(*args, **kwargs)

    def _refuse(self) -> NoReturn:
        raise PrivacyViolation(f"accelerator.{self._name} was called on a model that trains privately: {self._why}")
