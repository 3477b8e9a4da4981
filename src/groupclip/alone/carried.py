"""What a sample that runs by itself may write into: the next one must find it as the first did.

Dense buffers, and dense tensors and arrays in attributes of modules, also inside lists, queues, mappings and dataclasses; and
inputs that all samples get. What a model keeps elsewhere (in a global variable, a closure, an object of its own) isn't seen.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, MutableMapping, Sequence, Set
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..nested import has_numbers, is_record
from .attributes import OF_MODULES, is_unchanged, refill


def written_into(modules: Sequence[nn.Module], shared: Iterable[Any] = ()) -> list[Any]:
    """Return the tensors, arrays and containers that modules hold, each once; and what else all samples get."""
    found: dict[int, Any] = {}
    for value in shared:
        _gather(value, found)
    for module in modules:
        for buffer in module._buffers.values():
            _gather(buffer, found)
        for name, value in module.__dict__.items():
            if name not in OF_MODULES:
                _gather(value, found)
    return list(found.values())


def _gather(value: Any, found: dict[int, Any]) -> None:
    if id(value) in found:
        return
    if isinstance(value, Tensor):
        if not isinstance(value, nn.Parameter) and value.layout is torch.strided:
            found[id(value)] = value
    elif isinstance(value, np.ndarray):
        found[id(value)] = value
    elif isinstance(value, (tuple, Set)):
        for item in value:
            _gather(item, found)
    elif isinstance(value, (deque, MutableMapping, list)) or _has_fields(value):
        found[id(value)] = value
        for item in _content(value):
            _gather(item, found)


def _has_fields(value: Any) -> bool:
    return isinstance(value, SimpleNamespace) or (is_record(value) and "__dict__" in dir(value))


def _content(held: Any) -> list[Any]:
    if _has_fields(held):
        return list(vars(held).values())
    return list(held.values()) if isinstance(held, MutableMapping) else list(held)


def copied(held: Any) -> Any:
    """Return what a tensor, an array or a container holds now."""
    if isinstance(held, Tensor):
        return held.detach().clone()
    if isinstance(held, np.ndarray):
        return held.copy()
    return dict(vars(held)) if _has_fields(held) else copy.copy(held)


def write_back(held: Any, before: Any) -> None:
    """Make it hold what it held."""
    if isinstance(held, Tensor):
        if has_numbers(held) and not torch.equal(held.detach(), before):
            held.data.copy_(before)
    elif isinstance(held, np.ndarray):
        held[...] = before
    else:
        container = vars(held) if _has_fields(held) else held
        if not is_unchanged(container, before):
            refill(container, before)


def holds_still(held: Any, before: Any) -> bool:
    """Return whether it holds what it held; what can't be compared doesn't."""
    if isinstance(held, Tensor):
        return not has_numbers(held) or torch.equal(held.detach(), before)
    if isinstance(held, np.ndarray):
        return np.array_equal(held, before)
    return is_unchanged(vars(held) if _has_fields(held) else held, before)


class Carried:
    """What samples that run by themselves, one after another, may write into.

    Args:
        held: tensors, arrays and containers.
    """

    def __init__(self, held: Sequence[Any]) -> None:
        self._held = [(one, copied(one)) for one in held]
        self._first: list[Any] = []  # what the first sample left
        self._samples = 0
        self._of_samples: set[int] = set()  # which of them samples left different things in

    def compare(self) -> None:
        """Compare what a sample left with what the first did."""
        self._samples += 1
        if self._samples == 1:
            self._first = [copied(one) for one, _ in self._held]
            return
        for i, (one, _) in enumerate(self._held):
            if i not in self._of_samples and not holds_still(one, self._first[i]):
                self._of_samples.add(i)

    def put_back(self) -> None:
        """Make all of them hold what they held before the first sample."""
        for one, before in self._held:
            write_back(one, before)

    def forget_samples(self) -> None:
        """Put back what isn't the same for all samples: a later pass must not find it. One sample alone shows nothing."""
        for i, (one, before) in enumerate(self._held):
            if i in self._of_samples or self._samples == 1:
                write_back(one, before)
