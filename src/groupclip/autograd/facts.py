"""What a tensor of samples tells of its part in autograd, and of its memory: what a sample's alone would tell.

Under vmap the tensor that the model sees is no part of autograd's graph, the physical one below it is. So code that asks
(``if h.requires_grad``) would take another path than a sample alone.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch  # pyright: ignore[reportAttributeAccessIssue]

from .stops import Differ
from .vmap import NestedLevel, Part, natively


def by_itself(part: Part, func: Any, args: Any, kwargs: Any) -> Any:
    """Refuse what leaves torch, autograd's graph or the sample's own memory, so that every sample goes on by itself."""
    del func, args, kwargs
    raise Differ(list(range(part.size)), outside=True)


def _below(part: Part, x: Tensor) -> Tensor:
    """Return the tensor that autograd knows, with the samples in any dimension."""
    if not functorch.is_batchedtensor(x) or functorch.maybe_get_level(x) != part.level:
        raise NestedLevel
    return functorch.get_unwrapped(x)


def _asked_below(part: Part, func: Any, args: Any, kwargs: Any) -> Any:
    below = _below(part, args[0])
    with natively():
        return func(below, *args[1:], **kwargs)


def _requires_grad(part: Part, func: Any, args: Any, kwargs: Any) -> Any:
    """Answer the model's code. Torch's checkpoints, hooks, counters and shards ask too, to hang on the graph: not here."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    if frame.f_code.co_filename.startswith(_TORCHS_OWN):
        raise NestedLevel
    return _asked_below(part, func, args, kwargs)


_HERE = os.path.dirname(__file__)
_TORCHS_OWN = tuple(os.path.dirname(str(tools.__file__)) for tools in (torch.utils, torch.distributed))


def _changed_below(part: Part, func: Any, args: Any, kwargs: Any) -> Any:
    _asked_below(part, func, args, kwargs)
    return args[0]


def _memory(part: Part, func: Any, args: Any, kwargs: Any) -> Tensor:
    """Give ``x.data`` the same memory, of which torch's vmap makes a copy."""
    below, at = _below(part, args[0]), functorch.maybe_get_bdim(args[0])
    part.copies.memory_is_shown()
    with natively():
        return functorch._add_batch_dim(func(below, *args[1:], **kwargs), at, part.level)


def _of(owner: Any, names: str) -> list[Any]:
    return [getattr(owner, name) for name in names.split()]


def _properties(names: str) -> list[Any]:
    return [getattr(Tensor, name).__get__ for name in names.split()]


#: operation -> what is done in its stead when a sample's tensor takes part.
FACTS: dict[Any, Any] = {
    Tensor.requires_grad.__get__: _requires_grad,  # pyright: ignore[reportAttributeAccessIssue]
    **dict.fromkeys(_properties("is_leaf retains_grad _version output_nr"), _asked_below),
    **dict.fromkeys((Tensor.requires_grad_, Tensor.requires_grad.__set__), _changed_below),  # pyright: ignore[reportAttributeAccessIssue]
    Tensor.data.__get__: _memory,  # pyright: ignore[reportAttributeAccessIssue]
    **dict.fromkeys(_properties("grad_fn _grad_fn _base"), by_itself),
    # strides and offsets are those of a sample's own memory, and a new size may reach beyond it
    **dict.fromkeys(_of(Tensor, "as_strided as_strided_ as_strided_scatter resize_ resize_as_ set_ _is_view"), by_itself),
    **dict.fromkeys(_of(torch, "as_strided as_strided_ as_strided_copy as_strided_scatter"), by_itself),
    **dict.fromkeys(
        (Tensor.numpy, Tensor.__array__, Tensor.register_hook, Tensor.retain_grad, Tensor.data_ptr, Tensor.untyped_storage,
         Tensor.data.__set__),  # pyright: ignore[reportAttributeAccessIssue]
        by_itself),
    # torch has no batching rule, and autograd keeps what they change: sample by sample, each would spoil what the last one kept
    **dict.fromkeys(
        _of(Tensor, "pow_ __ipow__ float_power_ cumprod_ hypot_ ldexp_ index_reduce_"), by_itself),
}  # fmt: skip
