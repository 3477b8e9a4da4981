"""Which tensors come from the batch: known, not guessed.

A constant table (coordinates, positions) may be as long as the batch. Read as a batch, each of its rows would be
clipped as if it were a sample, and a real sample would move all of them. So the inputs of a forward pass are marked,
for its duration, with the class :class:`BatchTensor`, and whatever is computed from them carries the mark until it
meets a private parameter. From there on gradients are recorded, and a plain tensor that requires grad comes from the
batch; one that doesn't is a constant.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


class BatchTensor(Tensor):
    """A tensor computed from the inputs of the model without any private parameter."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from .private import dispatch, is_private_call  # here: private.py needs this class

        kwargs = kwargs or {}
        if is_private_call((args, kwargs)):
            return dispatch(func, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
        if args and (func.__name__ == "__setitem__" or _is_in_place(func.__name__)) and type(args[0]) is Tensor:
            args[0].__class__ = BatchTensor  # a buffer that rows of the batch were written into
        return _marked(result)


def _is_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def _marked(value: Any) -> Any:
    if type(value) is Tensor:
        # With gradients recorded the mark isn't needed any more: see above.
        return value if value.requires_grad else value.as_subclass(BatchTensor)
    if type(value) in (tuple, list):
        return type(value)(_marked(item) for item in value)
    return value


class Inputs:
    """The inputs of the forward passes since the last backward."""

    def __init__(self) -> None:
        self._held: list[weakref.ref[Tensor]] = []
        self._marked: list[Tensor] = []

    def mark(self, tensors: list[Tensor]) -> None:
        """Mark the inputs for the forward pass that begins."""
        self._held += [weakref.ref(t) for t in tensors]
        for tensor in tensors:
            if type(tensor) is Tensor:
                tensor.__class__ = BatchTensor
                self._marked.append(tensor)

    def unmark(self) -> None:
        """The forward pass is over: the user's tensors are what they were."""
        for tensor in self._marked:
            tensor.__class__ = Tensor
        self._marked.clear()

    def forget(self) -> None:
        self.unmark()
        self._held.clear()

    def source(self, tensor: Tensor) -> Tensor | None:
        """The input that ``tensor`` is, or is a view of."""
        start = _start(tensor)
        for held in self._held:
            other = held()
            if other is not None and other.device == tensor.device:
                low = _start(other)
                if low <= start < low + max(other.untyped_storage().nbytes(), 1):
                    return other
        return None


def _start(tensor: Tensor) -> int:
    return -1 if tensor.is_meta else tensor.untyped_storage().data_ptr()


def tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and mappings, in order."""
    yield from instances_in(value, Tensor)


def instances_in(value: object, kind: type | tuple[type, ...]) -> Iterator[Any]:
    """The objects of a class in nested tuples, lists and mappings, in order."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from instances_in(item, kind)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from instances_in(item, kind)


def replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """Nested tuples, lists and dicts with ``change`` applied to everything else."""
    if isinstance(value, dict):
        return {k: replaced(v, change) for k, v in value.items()}
    if isinstance(value, list):
        return [replaced(v, change) for v in value]
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        return tuple(replaced(v, change) for v in value)
    return change(value)
