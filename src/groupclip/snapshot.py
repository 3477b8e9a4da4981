"""What a model holds, put back after passes that must leave no trace."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .writes import Writes, memory_of, opaque

_Restore = Callable[[], None]
_FIXED = (bool, int, float, str, type(None))


class Snapshot:
    """Buffers, attributes and their contents (caches, counters, running statistics, generators) of every module of a model.

    And its weights, as far as passes write them by functions of torch: those are copied when it happens. Not what objects of
    other classes hold.

    Attributes:
        written: memory that the pass under way wrote.
    """

    def __init__(self, model: nn.Module) -> None:
        self._kept = _Kept()
        self._restore = [_attributes(m.__dict__, self._kept) for m in model.modules()]
        self._weights: dict[int, list[nn.Parameter]] = {}
        with torch._C.DisableTorchFunctionSubclass():
            for weight in model.parameters():
                if not opaque(weight):
                    self._weights.setdefault(memory_of(weight), []).append(weight)
        self.written: set[int] = set()

    @contextmanager
    def restored(self) -> Iterator[None]:
        """A pass that leaves no trace."""
        self.written.clear()
        try:
            with Writes(self._about_to_write):
                yield
        finally:
            with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
                for restore in self._restore:
                    restore()
                for kept in self._kept.tensors:
                    kept.restore(self.written)

    def _about_to_write(self, target: Tensor) -> None:
        memory = memory_of(target)
        if memory not in self.written:
            self.written.add(memory)
            for weight in self._weights.pop(memory, ()):
                self._kept.tensors.append(_KeptTensor(weight))


@dataclass(frozen=True)
class _Kept:
    """What a walk through a model has met: containers and generators once each, and copies of tensors."""

    seen: set[int] = field(default_factory=set)
    tensors: list[_KeptTensor] = field(default_factory=list)


class _KeptTensor:
    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._alias, self._version = tensor, tensor.detach(), tensor._version
        self._before = self._alias.clone()
        self._memory = None if opaque(tensor) else memory_of(tensor)

    def restore(self, written: set[int]) -> None:
        """After a pass that wrote this memory, or counted another version."""
        if self._tensor._version == self._version and self._memory not in written:
            return
        if self._memory is not None and memory_of(self._tensor) != self._memory:  # x.data = y
            self._tensor.data = self._alias
        self._alias.copy_(self._before)
        self._version = self._tensor._version


def _attributes(attributes: dict[str, Any], kept: _Kept) -> _Restore:
    """Names, the objects behind them, and what is in these: others may rely on the identity of a container."""
    before = attributes.copy()
    inner = _inner(before.values(), kept)

    def restore() -> None:
        if not _same(attributes, before):
            attributes.clear()
            attributes.update(before)
        for one in inner:
            one()

    return restore


def _inner(values: Any, kept: _Kept) -> list[_Restore]:
    return [restore for value in values if (restore := _keep(value, kept)) is not None]


def _keep(value: Any, kept: _Kept) -> _Restore | None:
    """How to put back what is in a value; None if nothing can change in it, or it is kept already."""
    if type(value) in _FIXED or isinstance(value, (nn.Parameter, nn.Module)) or id(value) in kept.seen:
        return None
    if isinstance(value, (dict, list, set, deque, Tensor, torch.Generator)):
        kept.seen.add(id(value))
    if isinstance(value, dict):
        return _attributes(value, kept)
    if isinstance(value, (list, set, deque)):
        return _elements(value, kept)
    if isinstance(value, Tensor) and not value.is_inference():
        kept.tensors.append(_KeptTensor(value))
    if isinstance(value, torch.Generator):
        state = value.get_state()
        return lambda: value.set_state(state) and None
    return None


def _elements(value: list[Any] | set[Any] | deque[Any], kept: _Kept) -> _Restore:
    before = value.copy()
    inner = _inner(before, kept)

    def restore() -> None:
        if len(value) != len(before) or not all(map(operator.is_, value, before)):
            value.clear()
            (value.update if isinstance(value, set) else value.extend)(before)
        for one in inner:
            one()

    return restore


def _same(now: dict[Any, Any], before: dict[Any, Any]) -> bool:
    return now.keys() == before.keys() and all(map(operator.is_, now.values(), before.values()))
