"""Operations that vmap can't run, or runs wrong: on each sample by itself, and the results put together."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..nested import has_numbers, replaced, tensors_in
from .operation import is_in_place
from .stops import Differ, NeedsOwn
from .vmap import NestedLevel, Part, natively


def one_by_one(part: Part, func: Any, args: Any, kwargs: Any, error: RuntimeError | None = None) -> Any:
    """Run the operation on each sample by itself, and put the results together.

    Raises:
        Differ: they don't go together.
        NeedsOwn: a tensor that isn't the sample's is written to.
        NestedLevel: the model is in a transform of its own.
        RuntimeError: ``error``, vmap's, where it is the operation's too, or where the model is in a transform of its own.
    """
    held = [t for t in tensors_in((args, kwargs)) if part.holds(t)]
    if not held or not part.on_top:
        raise error or NestedLevel
    written = list(_written(func, args, kwargs))
    for target in written:
        if not part.holds(target):
            raise NeedsOwn(target, error or RuntimeError("written to")) from error
    with natively():
        try:
            physical = {id(t): part.physical(t) for t in held}
            results = [
                func(*_of_sample(args, physical, i), **_of_sample(dict(kwargs), physical, i)) for i in range(part.size)
            ]
        except NestedLevel:
            if error is None:
                raise
            raise error from None
        except RuntimeError as again:
            if error is None:
                raise
            raise error from again
        if written:  # their rows were
            return written[0] if len(written) == 1 else results[0] if results[0] is None else _stacked(part, results)
        stacked = _stacked(part, results)
        _watch(part, [physical.get(id(t), t) for t in tensors_in((args, kwargs))], results, stacked)
        return stacked


def _watch(part: Part, given: list[Tensor], results: list[Any], stacked: Any) -> None:
    """Watch what is a copy in the place of a view of what was given."""
    memories = {t.untyped_storage().data_ptr() for t in given if t.layout is torch.strided and has_numbers(t)}
    for result in tensors_in(results):
        if result.layout is torch.strided and has_numbers(result) and result.untyped_storage().data_ptr() in memories - {0}:
            part.copies.watch(given, tensors_in(stacked))
            return


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """Yield the tensors that the operation writes to."""
    yield from tensors_in(kwargs.get("out"))
    if is_in_place(func) or getattr(func, "__name__", "") in _IN_PLACE or kwargs.get("inplace") is True:
        yield from tensors_in(args[0])


_IN_PLACE = frozenset(
    ("__set__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__", "__ior__", "__iand__",
     "__ixor__", "__ilshift__", "__irshift__")
)  # fmt: skip


def _of_sample(value: Any, physical: dict[int, Tensor], i: int) -> Any:
    return replaced(value, lambda v: physical[id(v)][i] if id(v) in physical else v)


def _stacked(part: Part, results: list[Any]) -> Any:
    first = results[0]
    if isinstance(first, Tensor):
        shapes: list[Hashable] = [tuple(r.shape) for r in results]
        if any(shape != shapes[0] for shape in shapes):
            raise Differ(shapes)
        return part.logical(torch.stack(results))
    if isinstance(first, (tuple, list)) and any(True for _ in tensors_in(first)):
        counts: list[Hashable] = [tuple(tuple(t.shape) for t in tensors_in(r)) for r in results]
        if any(count != counts[0] for count in counts):
            raise Differ(counts)
        items = [_stacked(part, list(item)) for item in zip(*results, strict=True)]
        return items if isinstance(first, list) else tuple(items) if type(first) is tuple else type(first)(items)
    return agreed([key_of(r) for r in results], results)


def key_of(value: Any) -> Hashable:
    """Equal for equal values, not a number included."""
    return value if isinstance(value, (bool, int)) else repr(value)


def agreed(keys: list[Hashable], values: list[Any]) -> Any:
    """Return the value of all samples.

    Raises:
        Differ: they haven't the same.
    """
    if any(key != keys[0] for key in keys):
        raise Differ(keys)
    return values[0]
