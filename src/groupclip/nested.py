"""Walking through nested arguments."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


#: What surely holds nothing: operations have many such arguments.
PLAIN_TYPES = frozenset({type(None), bool, int, float, str, torch.dtype, torch.device, slice, type(...)})


def tensors_in(value: object) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists, mappings and dataclasses, in order."""
    yield from instances_in(value, Tensor)


def has_numbers(x: Tensor) -> bool:
    """Return whether the tensor has values: it isn't on the meta device, whatever it says (:mod:`groupclip.memory.sketch`)."""
    with torch._C.DisableTorchFunction():
        return not x.is_meta


def instances_in(value: object, kind: type | tuple[type, ...]) -> Iterator[Any]:
    """Yield the objects of a class in nested tuples, lists, mappings and dataclasses, in order."""
    if isinstance(value, kind):
        yield value
    elif type(value) in PLAIN_TYPES:
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
    """Return whether it is an instance of a dataclass."""
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
        return type(value)(*items) if is_named_tuple(value) else type(value)(items)
    if is_record(value):
        again = copy.copy(value)
        for name in value.__dataclass_fields__:
            object.__setattr__(again, name, replaced(getattr(value, name), change))  # frozen or not
        return again
    return change(value)


def is_named_tuple(value: tuple[Any, ...] | list[Any]) -> bool:
    """Return whether its entries have names."""
    return isinstance(getattr(type(value), "_fields", None), tuple)
