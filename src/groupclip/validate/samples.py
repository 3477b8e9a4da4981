"""The user's example batch, from which samples are taken, in any order and number."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..nested import is_record

Path = tuple[Any, ...]


class Batch:
    """Arguments of a loss function, in which dimension 0 of tensors is the sample.

    Args:
        data: the arguments of the loss function after the model (a tuple or list), or its one argument (a mapping, a
            dataclass or a tensor). Of tensors as long as the first, and lists as long that don't hold such tensors alone, the
            entries are the samples.
        shared: inputs, by their place, that are of no sample though they are as long as the batch.

    Raises:
        TypeError: no tensor with a batch dimension.
    """

    def __init__(self, data: Any, shared: frozenset[Path] = frozenset()) -> None:
        self.given, self.shared = data, shared
        self.data: tuple[Any, ...]
        self.data = (data,) if isinstance(data, (Mapping, Tensor)) or is_record(data) else tuple(data)
        tensors = [t for _, t in _leaves(self.data) if isinstance(t, Tensor) and t.dim() > 0]
        if not tensors:
            raise TypeError("the batch holds no tensor with a batch dimension; pass e.g. (inputs, labels)")
        self.size = tensors[0].shape[0]

    def pick(self, *samples: int) -> tuple[Any, ...]:
        """Return the samples with these indices, in this order."""
        return self.changed(samples, times={})

    def changed(self, samples: Sequence[int], *, times: Mapping[int, float]) -> tuple[Any, ...]:
        """Do :meth:`pick`, the sample at position ``i`` of the result with its real entries multiplied by ``times[i]``
        (and by zero, with all its entries).
        """

        def change(t: Tensor) -> Tensor:
            t = t[list(samples)]
            for i, factor in times.items():
                if t.is_floating_point() or factor == 0:
                    t[i] = t[i] * factor if factor else torch.zeros_like(t[i])
            return t

        return self._rebuilt(self.data, (), samples, change)

    @property
    def has_real_inputs(self) -> bool:
        return any(t.is_floating_point() for _, t in self._of_samples())

    @property
    def positions(self) -> list[Path]:
        """Inputs that count 0, 1, .. as far as the batch is long: numbers of positions, perhaps, which are of no sample."""
        first, *rest = self._of_samples()
        return [
            p
            for p, t in rest
            if t.dim() == 1 and torch.equal(t.cpu().long(), torch.arange(self.size)) and t is not first[1]
        ]

    @property
    def doubtful(self) -> list[Path]:
        """Inputs after the first that are taken for samples because they are as long as the batch."""
        return [p for p, _ in self._of_samples()[1:]]

    def _of_samples(self) -> list[tuple[Path, Tensor]]:
        return [(p, t) for p, t in _leaves(self.data) if isinstance(t, Tensor) and self._is_of_samples(p, t)]

    def _is_of_samples(self, path: Path, value: Any) -> bool:
        return path not in self.shared and value.dim() > 0 and value.shape[0] == self.size

    def _rebuilt(self, value: Any, path: Path, samples: Sequence[int], change: Callable[[Tensor], Tensor]) -> Any:
        def again(key: Any, item: Any) -> Any:
            return self._rebuilt(item, (*path, key), samples, change)

        if isinstance(value, Tensor):
            own = self._is_of_samples(path, value)
            return change(value.detach()) if own else value.detach().clone()  # a model may change its inputs
        if path and _one_a_sample(value, self.size) and path not in self.shared:
            items = [value[i] for i in samples]
            return items if isinstance(value, list) else tuple(items)
        return _map(value, again)


def told(paths: Sequence[Path]) -> str:
    """Return inputs by their places."""
    names = ["".join([str(p[0]), *(f"[{k!r}]" for k in p[1:])]) for p in paths]
    return f"input {names[0]}" if len(names) == 1 else f"inputs {', '.join(names)}"


def _one_a_sample(value: Any, size: int) -> bool:
    """Return whether a list's items are the samples: lengths, texts, tensors of different shapes."""
    if type(value) not in (list, tuple) or len(value) != size:
        return False
    tensors = [t for _, t in _leaves(value) if isinstance(t, Tensor)]
    return not tensors or not all(t.dim() > 0 and t.shape[0] == size for t in tensors)  # else views of the whole batch


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    for key, item in _items(value):
        yield from _leaves(item, (*path, key))
    if not _items(value):
        yield path, value


def _items(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, (tuple, list)):
        return list(enumerate(value))
    if is_record(value):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    return []


def _map(value: Any, change: Callable[[Any, Any], Any]) -> Any:
    """Return the same container with every item changed."""
    if type(value) is dict:
        return {k: change(k, v) for k, v in value.items()}
    if isinstance(value, MutableMapping):
        again = copy.copy(value)
        for k, v in value.items():
            again[k] = change(k, v)
        return again
    if isinstance(value, list):
        return [change(i, v) for i, v in enumerate(value)]
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        items = [change(i, v) for i, v in enumerate(value)]
        named = isinstance(getattr(type(value), "_fields", None), tuple)
        return type(value)(*items) if named else tuple(items)
    if is_record(value):
        again = copy.copy(value)
        for name, item in _items(value):
            object.__setattr__(again, name, change(name, item))
        return again
    return value
