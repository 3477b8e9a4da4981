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

from ..errors import PrivacyViolation
from ..persample.base import PerSample
from ..persample.dense import Dense
from ..private import RULES, Call, NotSplit
from .shapes import by_sample


def layer_norm(
    call: Call, input: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:  # fmt: skip
    """``weight`` and ``bias`` in the shape ``normalized_shape`` (the last dimensions of the input)."""
    del cudnn_enable
    shape = list(normalized_shape)
    x = _over_features(call, input, len(shape))
    out = F.layer_norm(x, shape, call.value(weight), call.value(bias), eps)
    return _book(
        call, out, x, weight, bias, lambda x: F.layer_norm(x, shape, None, None, eps), _over_last(call, len(shape))
    )


def rms_norm(
    call: Call, input: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> Tensor:
    """As :func:`layer_norm`, without mean and bias."""
    shape = list(normalized_shape)
    x = _over_features(call, input, len(shape))
    out = F.rms_norm(x, shape, call.value(weight), eps)
    return _book(call, out, x, weight, None, lambda x: F.rms_norm(x, shape, None, eps), _over_last(call, len(shape)))


def group_norm(
    call: Call,
    input: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    """``weight`` and ``bias`` ``[C]``, the second dimension of the input."""
    del cudnn_enabled
    x = _of_images(call, input)
    out = F.group_norm(x, num_groups, call.value(weight), call.value(bias), eps)
    return _book(
        call, out, x, weight, bias, lambda x: F.group_norm(x, num_groups, None, None, eps), _over_channels(call)
    )


def instance_norm(
    call: Call, input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5, cudnn_enabled: bool = True,
) -> Tensor:  # fmt: skip
    """``weight`` and ``bias`` ``[C]``."""
    del cudnn_enabled
    if use_input_stats and running_mean is not None:
        raise PrivacyViolation(
            "InstanceNorm with track_running_stats=True in training mode writes statistics of the batch into the model "
            "without noise; build it with track_running_stats=False (the default)"
        )
    x = _of_images(call, input)

    def normalise(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        return F.instance_norm(x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)

    out = normalise(x, call.value(weight), call.value(bias))
    return _book(call, out, x, weight, bias, normalise, _over_channels(call))


def batch_norm(
    call: Call, input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """``weight`` and ``bias`` ``[C]``; only with fixed statistics, as in evaluation mode."""
    if training:
        raise PrivacyViolation(BATCH_STATISTICS)
    x = _of_images(call, input)

    def normalise(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        return F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)

    return _book(
        call, normalise(x, call.value(weight), call.value(bias)), x, weight, bias, normalise, _over_channels(call)
    )


#: Why batch norm can't be trained privately, and what to do.
BATCH_STATISTICS = (
    "batch normalisation with the statistics of the batch mixes samples (one sample changes the gradients of all) and stores "
    "un-noised statistics; replace it by GroupNorm, or put its modules in eval() mode to use fixed statistics"
)


def _over_features(call: Call, input: Any, features: int) -> Tensor:
    """The input of a norm over the last dimensions: the samples may be in any of the others."""
    return call.activation(input, second=input.dim() - features > 1)


def _of_images(call: Call, input: Any) -> Tensor:
    """The input of a norm of channels: ``[N, C, ..]`` by definition."""
    x = call.activation(input, second=False)
    if x.dim() < 2:
        raise NotSplit
    return x


def _over_last(call: Call, features: int) -> Callable[[Tensor], Tensor]:
    """Sum ``[B k, .., *features]`` to ``[B, *features]``."""

    def reduce(t: Tensor) -> Tensor:
        t = by_sample(t, call.batch)
        return t.sum(dim=tuple(range(1, t.dim() - features)), dtype=torch.promote_types(t.dtype, torch.float32))

    return reduce


def _over_channels(call: Call) -> Callable[[Tensor], Tensor]:
    """Sum ``[B k, C, ..]`` to ``[B, C]``."""

    def reduce(t: Tensor) -> Tensor:
        t = by_sample(t, call.batch)
        return t.sum(dim=(1, *range(3, t.dim())), dtype=torch.promote_types(t.dtype, torch.float32))

    return reduce


def _book(
    call: Call, out: Tensor, x: Tensor, weight: Any, bias: Any, normalise: Callable[[Tensor], Tensor],
    reduce: Callable[[Tensor], Tensor],
) -> Tensor:  # fmt: skip
    weighted, biased = call.is_private(weight), call.is_private(bias)
    if not weighted and not biased:
        return out

    def book(saved: Any, grads: Any) -> list[PerSample]:
        g = grads[0]
        booked: list[PerSample] = []
        if weighted:
            booked.append(Dense(reduce(g * normalise(saved[0]))))
        if biased:
            booked.append(Dense(reduce(g)))
        return booked

    return call.tap([out], [x] if weighted else [], [o for o in (weight, bias) if call.is_private(o)], book)[0]


for _functions, _rule in (
    ((F.layer_norm, torch.layer_norm), layer_norm),
    ((F.rms_norm, torch.rms_norm), rms_norm),
    ((F.group_norm, torch.group_norm), group_norm),
    ((F.instance_norm,), instance_norm),
    ((F.batch_norm,), batch_norm),
):
    for _function in _functions:
        RULES[_function] = _rule
