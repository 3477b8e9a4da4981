"""What has an entry for each sample among the inputs and isn't cut by sample, so that every sample would see all of it.

Lists, tuples and arrays of numbers or text; lists of tensors, one for each sample; tensors and arrays in objects that aren't
looked into. One that is as long as the batch by chance (a size, a shape) is no harm. One that has an entry for each sample
(lengths, labels) is refused: a sample alone would take another's entry for its own. So is a tensor that has several rows for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Size, Tensor, nn

from ..errors import PrivacyViolation, UnsupportedOperation
from ..nested import PLAIN_TYPES, is_named_tuple, tensors_in
from .attributes import alike
from .where import Place, describe, parts_of

#: Whether the model's outputs on some samples, in this order, are the same beside all of the sequence.
Whole = Callable[[tuple[int, ...]], bool]


class Sequences:
    """Remembers the packed sequences of one model.

    Args:
        guarded: there is noise to come: one that is as long as the batch, and was so in every call, isn't given to all samples.
    """

    def __init__(self, *, guarded: bool = False) -> None:
        self._guarded = guarded
        self._constant: set[Place] = set()

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], batch: int, whole: Whole | None) -> None:
        """Refuses those that have an entry for each sample.

        Args:
            args, kwargs: the inputs.
            batch: B.
            whole: tries it out; None: it can't be.

        Raises:
            UnsupportedOperation: one is as long as the batch, and it can't be seen that this is chance.
        """
        for place, value in (*_sequences_in(args, batch), *_sequences_in(kwargs, batch)):
            if len(value) != batch:
                self._constant.add(place)  # it doesn't follow the batch
            elif batch > 1 and place not in self._constant:
                other = next((i for i in range(1, batch) if _differ(value[i], value[0])), None)
                if other is None:
                    continue
                # A trial doesn't show every way to read the entries of all: a mean, the longest.
                tries = None if isinstance(value, Tensor) or (self._guarded and _is_plain(value)) else whole
                # Beside the first entry comes a sample that has another.
                if tries is None or not tries((other, 0, other) if batch == 2 else (other, 0)):
                    raise UnsupportedOperation(
                        f"the input {describe(place)} is a {type(value).__name__} as long as the batch ({batch}), and only tensors "
                        "in tuples, lists, mappings and dataclasses are cut by sample: each sample would see the entries of all. "
                        "Pass it as a tensor whose dimension 0 is the sample (text as numbers); if it isn't of the samples, let "
                        "the model or a function close over it"
                    )
                self._constant.add(place)


def _differ(value: Any, other: Any) -> bool:
    return value is not other if _is_object(other) else not alike(value, other)


def _sequences_in(value: Any, batch: int, place: Place = (), within: int = 0) -> Iterator[tuple[Place, Any]]:
    """Yield what isn't cut. ``within``: in how many objects it is, in which tensors aren't cut either."""
    if isinstance(value, (np.ndarray, Tensor)):
        if len(value.shape) and (within or not isinstance(value, Tensor)):
            yield place, value
        return
    if isinstance(value, (tuple, list)) and not isinstance(value, Size) and place and not is_named_tuple(value):
        plain, tensors = all(map(_is_plain, value)), [t for t in tensors_in(value) if t.dim()]
        if plain or not tensors or not all(len(t) == batch for t in tensors):
            yield place, value
        if plain:
            return
    parts = parts_of(value)
    if not parts and within < _DEEPEST and _is_object(value):
        parts, within = list(_content(value)), within + 1
    for key, item in parts:
        yield from _sequences_in(item, batch, (*place, key), within)


_DEEPEST = 3  # objects in objects


def _is_object(value: Any) -> bool:
    """Return whether it may hold what isn't looked into elsewhere. What a module holds is of no sample, by the contract."""
    kind = type(value)
    if kind in PLAIN_TYPES or kind.__module__ == "builtins" or kind.__module__.startswith("torch."):
        return isinstance(value, (set, frozenset))
    return not isinstance(value, (type, nn.Module, FunctionType, Enum, torch.Generator))


def _content(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, (set, frozenset)):
        yield from enumerate(value)
        return
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name in ("__dict__", "__weakref__"):
                continue
            try:
                yield name, getattr(value, name)
            except AttributeError:  # not set
                continue


class Multiples:
    """Sees whether tensors that aren't cut have several rows for each sample: as many in batches of any size."""

    def __init__(self) -> None:
        self._seen: dict[Place, tuple[int, int] | None] = {}  # rows for each sample, and the batch; None: it doesn't follow it

    def check(self, place: Place, length: int, batch: int) -> None:
        """Look at a tensor of another call.

        Raises:
            PrivacyViolation: in two batches it had as many rows for each sample.
        """
        if not batch or (place in self._seen and self._seen[place] is None):
            return
        each, rest = divmod(length, batch)
        if rest or each < 2:
            self._seen[place] = None
            return
        before = self._seen.setdefault(place, (each, batch))
        if before is None or before[0] != each:
            self._seen[place] = None
        elif before[1] != batch:
            raise PrivacyViolation(
                f"the input {describe(place)} has {each} rows for each sample, in a batch of {before[1]} and in one of {batch}, "
                "and only tensors with one row a sample are cut: each sample would see the rows of all. Give it as a tensor whose "
                f"dimension 0 is the sample, [{batch}, {each}, ..]; if it isn't of the samples, as a buffer of the model or a "
                "tensor [1, ..]"
            )


def _is_plain(value: Any) -> bool:
    """Return numbers, text, and nested lists and mappings of such: nothing that is cut."""
    if isinstance(value, Tensor):
        return value.dim() == 0
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic, np.ndarray))
