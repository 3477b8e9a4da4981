"""Layer, group, instance and RMS norm, and batch norm with fixed statistics: ``out = x_hat * weight + bias``.

The gradients of weight and bias need the normalised input ``x_hat``. It is recomputed in the backward pass from the
input, which autograd keeps anyway: one cheap pass instead of another kept activation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..autograd.dispatch import CHECKS, RULES
from ..autograd.operation import Call, NotSplit
from ..errors import PrivacyViolation
from ..persample.base import PerSample
from ..persample.dense import Dense
from .shapes import summed


def layer_norm(
    call: Call, input: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:  # fmt: skip
    """Take ``weight`` and ``bias`` in the shape ``normalized_shape`` (the last dimensions of the input)."""
    del cudnn_enable
    shape, x = list(normalized_shape), _plain_affine(call, input, weight, bias)
    out = F.layer_norm(x, shape, call.value(weight), call.value(bias), eps)
    return _book(
        call,
        out,
        x,
        weight,
        bias,
        lambda x: F.layer_norm(x, shape, None, None, eps),
        tuple(range(1, x.dim() - len(shape))),
    )


def rms_norm(
    call: Call, input: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> Tensor:
    """Normalise as :func:`layer_norm` does, without mean and bias."""
    shape, x = list(normalized_shape), _plain_affine(call, input, weight, None)
    out = F.rms_norm(x, shape, call.value(weight), eps)
    return _book(
        call, out, x, weight, None, lambda x: F.rms_norm(x, shape, None, eps), tuple(range(1, x.dim() - len(shape)))
    )


def group_norm(
    call: Call, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enabled: bool = True,
) -> Tensor:  # fmt: skip
    """Take ``weight`` and ``bias`` ``[C]``, the second dimension of the input."""
    del cudnn_enabled
    return _of_images(call, input, weight, bias, lambda x, weight, bias: F.group_norm(x, num_groups, weight, bias, eps))


def instance_norm(
    call: Call, input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5, cudnn_enabled: bool = True,
) -> Tensor:  # fmt: skip
    """Take ``weight`` and ``bias`` ``[C]``."""
    del cudnn_enabled
    return _of_images(
        call,
        input,
        weight,
        bias,
        lambda x, weight, bias: F.instance_norm(
            x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
        ),
    )


def batch_norm(
    call: Call, input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Take ``weight`` and ``bias`` ``[C]``; only with fixed statistics, as in evaluation mode."""
    del training  # checked
    if call.holds(running_mean) or call.holds(running_var):
        raise NotSplit
    return _of_images(
        call,
        input,
        weight,
        bias,
        lambda x, weight, bias: F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps),
    )


def check_instance_norm(
    input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5, cudnn_enabled: bool = True,
) -> None:  # fmt: skip
    """Refuse statistics of the batch that the model keeps."""
    del input, running_var, weight, bias, momentum, eps, cudnn_enabled
    if use_input_stats and running_mean is not None:
        raise PrivacyViolation(RUNNING_STATISTICS)


def check_batch_norm(
    input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> None:  # fmt: skip
    """Refuse statistics of the batch."""
    del input, running_mean, running_var, weight, bias, momentum, eps
    if training:
        raise PrivacyViolation(BATCH_STATISTICS)


#: Why batch norm can't be trained privately, and what to do.
BATCH_STATISTICS = (
    "batch normalisation with the statistics of the batch mixes samples (one sample changes the gradients of all) and stores "
    "un-noised statistics; replace it by GroupNorm, or put its modules in eval() mode to use fixed statistics"
)


#: Why running statistics can't be kept, and what to do.
RUNNING_STATISTICS = (
    "InstanceNorm with track_running_stats=True in training mode writes statistics of the batch into the model without "
    "noise; build it with track_running_stats=False (the default)"
)


def _plain_affine(call: Call, input: Any, weight: Any, bias: Any) -> Tensor:
    """Return the input of all samples, where weight and bias are the same for all of them."""
    if call.holds(weight) or call.holds(bias):
        raise NotSplit
    return call.samples(input)


def _of_images(
    call: Call, input: Any, weight: Any, bias: Any, normalise: Callable[[Tensor, Any, Any], Tensor]
) -> Tensor:
    """Return norms of channels, of images ``[K, C, ..]`` of each sample."""
    x = _plain_affine(call, input, weight, bias)
    if x.dim() < 3:
        raise NotSplit
    shape = x.shape[:2]

    def of_all(x: Tensor, weight: Any, bias: Any) -> Tensor:
        return normalise(x.flatten(0, 1), weight, bias).unflatten(0, shape)

    out = of_all(x, call.value(weight), call.value(bias))
    return _book(call, out, x, weight, bias, lambda x: of_all(x, None, None), (1, *range(3, x.dim())))


def _book(
    call: Call, out: Tensor, x: Tensor, weight: Any, bias: Any, normalise: Callable[[Tensor], Tensor], positions: tuple[int, ...]
) -> Tensor:  # fmt: skip
    """Book weight and bias; ``positions`` are the dimensions over which they are shared."""
    weighted, biased = call.is_private(weight), call.is_private(bias)

    def book(saved: Any, grads: Any) -> list[PerSample]:
        g = grads[0]
        booked: list[PerSample] = []
        if weighted:
            booked.append(Dense(summed(g * normalise(saved[0]), positions)))
        if biased:
            booked.append(Dense(summed(g, positions)))
        return booked

    return call.tap([out], [x] if weighted else [], [weight] * weighted + [bias] * biased, book)[0]


for _functions, _rule in (
    ((F.layer_norm, torch.layer_norm), layer_norm),
    ((F.rms_norm, torch.rms_norm), rms_norm),
    ((F.group_norm, torch.group_norm), group_norm),
    ((F.instance_norm,), instance_norm),
    ((F.batch_norm,), batch_norm),
):
    for _function in _functions:
        RULES[_function] = _rule
CHECKS[F.instance_norm] = check_instance_norm
CHECKS[F.batch_norm] = check_batch_norm
