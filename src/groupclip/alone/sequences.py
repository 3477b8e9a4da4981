"""Lists, tuples and arrays of numbers or text among the inputs: only tensors are cut, so every sample sees all of them.

One that is as long as the batch by chance (a size, a shape) is no harm. One that has an entry for each sample (lengths, labels) is
refused: a sample alone would take another's entry for its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from torch import Size, Tensor

from ..errors import UnsupportedOperation
from ..nested import is_record
from .attributes import alike

#: A place among the inputs.
Place = tuple[Any, ...]

#: Whether the model's outputs on some samples, in this order, are the same beside all of the sequence.
Whole = Callable[[tuple[int, ...]], bool]


class Sequences:
    """Remembers the packed sequences of one model."""

    def __init__(self) -> None:
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
        for place, value in (*_sequences_in(args), *_sequences_in(kwargs)):
            if len(value) != batch:
                self._constant.add(place)  # it doesn't follow the batch
            elif batch > 1 and place not in self._constant:
                other = next((i for i in range(1, batch) if not alike(value[i], value[0])), None)
                if other is None:
                    continue
                # Beside the first entry comes a sample that has another.
                if whole is None or not whole((other, 0, other) if batch == 2 else (other, 0)):
                    raise UnsupportedOperation(
                        f"the input {_describe(place)} is a {type(value).__name__} as long as the batch ({batch}), and only "
                        "tensors are cut by sample: each sample would see the entries of all. Pass it as a tensor whose dimension "
                        "0 is the sample (text as numbers); if it isn't of the samples, let the model or a function close over it"
                    )
                self._constant.add(place)


def _sequences_in(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _sequences_in(item, (*place, key))
    elif isinstance(value, np.ndarray):
        if value.ndim:
            yield place, value
    elif isinstance(value, (tuple, list)) and not isinstance(value, Size):
        if place and all(map(_is_plain, value)):
            yield place, value
        else:
            for n, item in enumerate(value):
                yield from _sequences_in(item, (*place, n))
    elif is_record(value):
        for name in value.__dataclass_fields__:
            yield from _sequences_in(getattr(value, name), (*place, name))


def _is_plain(value: Any) -> bool:
    """Return numbers, text, and nested lists and mappings of such: nothing that is cut."""
    if isinstance(value, Tensor):
        return value.dim() == 0
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic, np.ndarray))


def _describe(place: Place) -> str:
    first, *rest = place
    return f"{first!r}" + "".join(f"[{key!r}]" for key in rest)
