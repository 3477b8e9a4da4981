"""What a model holds beside its parameters, put back after passes that must leave no trace."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_Restore = Callable[[], None]


class Snapshot:
    """Buffers, attributes and their contents (caches, counters, running statistics, generators) of every module of a model.

    Not the parameters, nor what objects of other classes hold.
    """

    def __init__(self, model: nn.Module) -> None:
        self._seen: set[int] = set()
        self._restore = [_attributes(m.__dict__, self._seen) for m in model.modules()]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """A pass that leaves no trace."""
        try:
            yield
        finally:
            with torch.no_grad():
                for restore in self._restore:
                    restore()


class Buffers:
    """The buffers that ``state_dict`` would publish, looked at after passes over samples that differ.

    Attributes:
        changed: some pass changed one.
        of_samples: names of those whose values depend on the samples.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = {name: (buffer, buffer._version) for name, buffer in _published(model)}
        self._after: dict[str, Tensor] = {}
        self.changed = False
        self.of_samples: set[str] = set()

    def look(self) -> None:
        """After a pass, before it is undone. The random numbers are the same in all of them."""
        for name, buffer in _published(self._model):
            before, version = self._before.get(name, (None, 0))
            if buffer is before and buffer._version == version:
                continue
            self.changed = True
            now = buffer.detach().clone()
            other = self._after.setdefault(name, now)
            if other.shape != now.shape or other.dtype != now.dtype or not torch.equal(_bits(other), _bits(now)):
                self.of_samples.add(name)


def _bits(buffer: Tensor) -> Tensor:
    """Of any dtype; nan is nan."""
    return buffer.contiguous().reshape(-1).view(torch.uint8)


def _published(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}".lstrip("."), buffer


def _attributes(attributes: dict[str, Any], seen: set[int]) -> _Restore:
    """Names, the objects behind them, and what is in these: others may rely on the identity of a container."""
    before = attributes.copy()
    inner = _inner(before.values(), seen)

    def restore() -> None:
        if not _same(attributes, before):
            attributes.clear()
            attributes.update(before)
        for one in inner:
            one()

    return restore


def _inner(values: Any, seen: set[int]) -> list[_Restore]:
    return [restore for value in values if (restore := _keep(value, seen)) is not None]


def _keep(value: Any, seen: set[int]) -> _Restore | None:
    """How to put back what is in a value; None if nothing can change in it, or it is kept already."""
    if isinstance(value, (nn.Parameter, nn.Module)) or id(value) in seen:
        return None
    if isinstance(value, (dict, list, set, deque, Tensor, torch.Generator)):
        seen.add(id(value))
    if isinstance(value, dict):
        return _attributes(value, seen)
    if isinstance(value, (list, set, deque)):
        return _elements(value, seen)
    if isinstance(value, Tensor):
        return None if value.is_inference() else _tensor(value)
    if isinstance(value, torch.Generator):
        state = value.get_state()
        return lambda: value.set_state(state) and None
    return None


def _elements(value: list[Any] | set[Any] | deque[Any], seen: set[int]) -> _Restore:
    before = value.copy()
    inner = _inner(before, seen)

    def restore() -> None:
        if len(value) != len(before) or any(a is not b for a, b in zip(value, before, strict=True)):
            value.clear()
            (value.update if isinstance(value, set) else value.extend)(before)
        for one in inner:
            one()

    return restore


def _tensor(value: Tensor) -> _Restore:
    before, version = value.detach().clone(), value._version

    def restore() -> None:
        nonlocal version
        if value._version != version:
            value.detach().copy_(before)
            version = value._version

    return restore


def _same(now: dict[Any, Any], before: dict[Any, Any]) -> bool:
    return len(now) == len(before) and all(k in now and now[k] is v for k, v in before.items())
