"""Where a value lies among the inputs of a call: an input is known by its place from one call to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from ..nested import PLAIN_TYPES, is_record

#: The number or the name of an argument, then keys, numbers and names of what it lies in.
Place = tuple[Any, ...]


def placed_tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[Place, Tensor]]:
    """Yield the tensors in the arguments with their places: those of :func:`groupclip.nested.tensors_in`, in its order."""
    yield from _tensors(args, ())
    yield from _tensors(kwargs, ())


def _tensors(value: Any, place: Place) -> Iterator[tuple[Place, Tensor]]:
    if isinstance(value, Tensor):
        yield place, value
        return
    for key, item in parts_of(value):
        yield from _tensors(item, (*place, key))


def parts_of(value: Any) -> list[tuple[Any, Any]]:
    """Return what is in a mapping, a sequence or a dataclass, with its keys; nothing for anything else."""
    if type(value) in PLAIN_TYPES:
        return []
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, (tuple, list)):
        return list(enumerate(value))
    if is_record(value):
        return [(name, getattr(value, name)) for name in value.__dataclass_fields__]
    return []


def describe(place: Place) -> str:
    first, *rest = place
    return f"{first!r}" + "".join(f"[{key!r}]" for key in rest)
