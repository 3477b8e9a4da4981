"""Operations by which a parameter gets a row for every sample: ``cls_token.expand(B, ..)``, then ``cat`` with the batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..call import Call, NotSplit
from ..derived import derive
from ..layout import Axis
from ..operands import PrivateTensor
from ..persample.base import PerSample
from ..persample.dense import Dense
from ..private import RULES
from .broadcast import sum_to

_REPEATS: set[Any] = {Tensor.repeat, torch.tile, Tensor.tile}


def expand(call: Call, self: Any, *args: Any, **kwargs: Any) -> Any:
    """``expand``, ``expand_as``, ``broadcast_to``, and ``repeat`` along dimension 0.

    The result stays private until it meets the batch: a dimension of length B may be something else.
    """
    if not call.is_private(self):
        raise NotSplit
    value = call.func(call.value(self), *args, **kwargs)
    missing = value.dim() - self.dim()
    grew = missing > 0 or self.shape[0] == 1
    batch, shape = call.batch, self.shape
    repeated = call.func in _REPEATS
    repeats = repeated and value.shape[1:] != ((1,) * missing + tuple(shape))[1:]
    if repeated and value.shape == (batch * shape[0], *shape[1:]):

        def book_copies(saved: Any, grads: Any) -> list[PerSample]:
            return [Dense(grads[0].reshape(batch, *shape))]

        # The whole of it for each sample, one copy after another.
        return derive(call, lambda: call.tap([value], [], [self], book_copies)[0])
    if value.shape[0] != batch or not grew or repeats:
        return derive(call)

    def book(saved: Any, grads: Any) -> list[PerSample]:
        return [Dense(sum_to(grads[0], Axis.MAJOR, shape, batch))]

    return derive(call, lambda: call.tap([value], [], [self], book)[0])


def cat(call: Call, tensors: Any, dim: int = 0) -> Any:
    """Joins along any dimension but the batch's: each private part lines up with the samples, row by row."""
    return _join(call, list(tensors), dim, tensors[0].dim())


def stack(call: Call, tensors: Any, dim: int = 0) -> Any:
    """As :func:`cat`, for a new dimension that isn't in front."""
    return _join(call, list(tensors), dim, tensors[0].dim() + 1)


def _join(call: Call, tensors: list[Any], dim: int, dims: int) -> Any:
    dim %= dims
    if dim == 0 or any(t.dim() == 0 or t.shape[0] != call.batch for t in tensors):
        raise NotSplit

    def joined() -> Tensor:
        return call.func([call.aligned_rows(t) if call.is_private(t) else t for t in tensors], dim)

    axes = [call.axis(t, i) for i, t in enumerate(tensors) if not call.is_private(t)]
    if any(axis in (Axis.MIXED, Axis.SECOND, Axis.MINOR) for axis in axes):
        raise NotSplit
    if Axis.MAJOR in axes:
        return joined()
    # No part is known to be the batch: if the result is, this is how.
    readable = all(
        not call.is_private(t) or (isinstance(t, PrivateTensor) and t._derived.rows is not None) for t in tensors
    )
    return derive(call, joined if readable else None)


for _function in (
    Tensor.expand,
    Tensor.expand_as,
    torch.broadcast_to,
    Tensor.broadcast_to,
    Tensor.repeat,
    torch.tile,
    Tensor.tile,
):
    RULES[_function] = expand
RULES[torch.cat] = RULES[torch.concat] = RULES[torch.concatenate] = cat
RULES[torch.stack] = stack
