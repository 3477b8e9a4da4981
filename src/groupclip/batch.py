"""The inputs of forward passes, and walking through nested arguments."""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


#: What surely holds nothing: operations have many such arguments.
_PLAIN = frozenset({type(None), bool, int, float, str, torch.dtype, torch.device})


class Inputs:
    """The inputs of the forward passes since the last backward: known to be the batch."""

    def __init__(self) -> None:
        self._held: list[weakref.ref[Tensor]] = []

    def add(self, tensors: list[Tensor]) -> None:
        self._held += [weakref.ref(t) for t in tensors]

    def forget(self) -> None:
        self._held.clear()

    def holds(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` is one of them, or is cut from one along the samples (same step from sample to sample)."""
        if tensor.dim() == 0 or tensor.is_meta:
            return False
        start = tensor.untyped_storage().data_ptr()
        for held in self._held:
            other = held()
            if other is None or other.is_meta or other.dim() == 0 or other.device != tensor.device:
                continue
            if other.untyped_storage().data_ptr() == start and start != 0:
                return tensor.shape[0] == other.shape[0] and tensor.stride(0) == other.stride(0)
        return False


def tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists, mappings and dataclasses, in order."""
    yield from instances_in(value, Tensor)


def instances_in(value: object, kind: type | tuple[type, ...]) -> Iterator[Any]:
    """The objects of a class in nested tuples, lists, mappings and dataclasses, in order."""
    if isinstance(value, kind):
        yield value
    elif type(value) in _PLAIN:
        return
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from instances_in(item, kind)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from instances_in(item, kind)
    elif is_record(value):
        for name in value.__dataclass_fields__:
            yield from instances_in(getattr(value, name), kind)


def is_record(value: object) -> TypeGuard[DataclassInstance]:
    """Whether it is an instance of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """Nested tuples, lists, mappings and dataclasses with ``change`` applied to everything else. They keep their class."""
    if type(value) is dict:
        return {k: replaced(v, change) for k, v in value.items()}
    if isinstance(value, MutableMapping):  # a transformers batch or output: made anew from its own entries
        again = copy.copy(value)
        for k, v in value.items():
            again[k] = replaced(v, change)
        return again
    if isinstance(value, list):
        return [replaced(v, change) for v in value]
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        items = [replaced(v, change) for v in value]
        if type(value) is tuple:
            return tuple(items)
        # A named tuple takes its fields one by one; the named results of torch take them together.
        return type(value)(*items) if _is_named(value) else type(value)(items)
    if is_record(value):
        again = copy.copy(value)
        for name in value.__dataclass_fields__:
            object.__setattr__(again, name, replaced(getattr(value, name), change))  # frozen or not
        return again
    return change(value)


def _is_named(value: tuple[Any, ...]) -> bool:
    return isinstance(getattr(type(value), "_fields", None), tuple)
