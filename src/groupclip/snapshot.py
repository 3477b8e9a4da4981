"""What a model holds, put back after passes that must leave no trace; and what of it they fill from samples."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.overrides import TorchFunctionMode

_Restore = Callable[[], None]


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
                if not _out_of_sight(weight):
                    self._weights.setdefault(_memory(weight), []).append(weight)
        self.written: set[int] = set()

    @contextmanager
    def restored(self) -> Iterator[None]:
        """A pass that leaves no trace."""
        self.written.clear()
        try:
            with _Writes(self._about_to_write):
                yield
        finally:
            with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
                for restore in self._restore:
                    restore()
                for kept in self._kept.tensors:
                    kept.restore(self.written)

    def _about_to_write(self, target: Tensor) -> None:
        memory = _memory(target)
        if memory not in self.written:
            self.written.add(memory)
            for weight in self._weights.pop(memory, ()):
                self._kept.tensors.append(_KeptTensor(weight))


class Published:
    """Buffers and weights that ``state_dict`` would publish, looked at after passes over samples that differ.

    Attributes:
        changed: some pass changed one.
        of_samples: names of those whose values depend on the samples.
    """

    def __init__(self, model: nn.Module, written: set[int]) -> None:
        """Args: the model, and :attr:`Snapshot.written`."""
        self._model, self._written = model, written
        self._before = {name: (held, held._version) for name, held in _published(model)}
        self._after: dict[str, Tensor] = {}
        self.changed = False
        self.of_samples: set[str] = set()

    def look(self) -> None:
        """After a pass, before it is undone. The random numbers are the same in all of them."""
        with torch._C.DisableTorchFunctionSubclass():
            for name, held in _published(self._model):
                before, version = self._before.get(name, (None, 0))
                if held is before and held._version == version and not self._wrote(held):
                    continue
                self.changed = True
                now = held.detach().clone()
                other = self._after.setdefault(name, now)
                if other.shape != now.shape or other.dtype != now.dtype or not torch.equal(_bits(other), _bits(now)):
                    self.of_samples.add(name)

    def _wrote(self, held: Tensor) -> bool:
        return bool(self._written) and not _out_of_sight(held) and _memory(held) in self._written


class _Writes(TorchFunctionMode):
    """Sees what is about to be written, through whatever view: past the version that autograd counts too (``x.data``)."""

    def __init__(self, about_to_write: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._tell = about_to_write

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not torch.compiler.is_compiling() and (_writes(func) or "out" in kwargs):
            with torch._C.DisableTorchFunctionSubclass():
                for target in _targets(args, kwargs):
                    if isinstance(target, Tensor) and not _out_of_sight(target):
                        self._tell(target)
        return func(*args, **kwargs)


def _writes(func: Any) -> bool:
    """Whether a function writes into its first argument: ``add_``, ``_foreach_add_``, ``x += y``, ``x[i] = y``, ``x.data = y``."""
    name = func.__name__.partition(".")[0]  # add_.Tensor
    if name.startswith("__"):
        return name in _WRITES or (name == "__set__" and func == _SET_DATA)
    return name.endswith("_")


_SET_DATA = Tensor.data.__set__  # pyright: ignore[reportAttributeAccessIssue]
_WRITES = {n for n in dir(Tensor) if n.startswith("__i") and n.replace("__i", "__", 1) in dir(Tensor)} | {"__setitem__"}


def _targets(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    for one in (*args[:1], kwargs.get("out")):
        found.extend(one if isinstance(one, (tuple, list)) else (one,))
    return found


def _memory(tensor: Tensor) -> int:
    """The same for all views of it, as long as one of them lives."""
    return tensor.untyped_storage()._cdata


def _out_of_sight(tensor: Tensor) -> bool:
    return tensor.layout is not torch.strided or _functorch.is_functorch_wrapped_tensor(tensor)


def _bits(buffer: Tensor) -> Tensor:
    """Of any dtype; nan is nan."""
    return buffer.contiguous().reshape(-1).view(torch.uint8)


def _published(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for prefix, module in model.named_modules():
        for name, held in (*module._buffers.items(), *module._parameters.items()):
            if held is not None and name not in module._non_persistent_buffers_set and not held.is_inference():
                yield f"{prefix}.{name}".lstrip("."), held


@dataclass(frozen=True)
class _Kept:
    """What a walk through a model has met: containers and generators once each, and copies of tensors."""

    seen: set[int] = field(default_factory=set)
    tensors: list[_KeptTensor] = field(default_factory=list)


class _KeptTensor:
    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._alias, self._version = tensor, tensor.detach(), tensor._version
        self._before = self._alias.clone()
        self._memory = None if _out_of_sight(tensor) else _memory(tensor)

    def restore(self, written: set[int]) -> None:
        """After a pass that wrote this memory, or counted another version."""
        if self._tensor._version == self._version and self._memory not in written:
            return
        if self._memory is not None and _memory(self._tensor) != self._memory:  # x.data = y
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
    if isinstance(value, (nn.Parameter, nn.Module)) or id(value) in kept.seen:
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
