"""Everything that a forward pass may leave behind in a model or a loss function: found, compared, put back.

Buffers, attributes, containers and objects behind them, what a loss function closes over, generators of their own. Weights are
looked at apart (:class:`Weights`): they are many, and hardly ever change in a forward pass.
"""

from __future__ import annotations

import copy
import functools
import random
import types
from collections import deque
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

#: Of containers with more entries, the first and the last are looked at: data sets, vocabularies, banks of features.
_MANY = 256

#: Tensors with more numbers are copied once: what a loss function closes over may be a data set.
_LARGE = 2**20

#: What torch itself keeps in a module: hooks and settings.
_OF_TORCH = frozenset(vars(nn.Module())) - {"_parameters", "_buffers", "_modules"}

_NUMBERS = (bool, int, float, complex, str, bytes, type(None))


#: id -> a large tensor, how often torch has seen it change, and its content then.
Copies = dict[int, tuple[Tensor, int, Tensor]]


@dataclass(frozen=True)
class Leaf:
    """A value that was found.

    Attributes:
        value: a copy.
        saved: whether ``state_dict`` holds it.
    """

    value: Any
    saved: bool


@dataclass
class State:
    """A walk over all that is reachable from some objects: its values by name, and how to put them back."""

    leaves: dict[str, Leaf] = field(default_factory=dict)
    generators: list[Any] = field(default_factory=list)
    _undo: list[Callable[[], None]] = field(default_factory=list)
    _empty: list[Any] = field(default_factory=list)  # containers, most of them for hooks that nobody has
    _seen: set[int] = field(default_factory=set)
    _alive: list[Any] = field(default_factory=list)  # what is looked at must live, or its id may be another's
    _copies: Copies = field(default_factory=dict)

    @classmethod
    def of(cls, *roots: Any, copies: Copies | None = None) -> State:
        """Walk over ``roots``; ``copies`` of large tensors, kept from walk to walk, are used again where torch counts no change."""
        state = cls(_copies={} if copies is None else copies)
        for root in roots:
            state._walk(root, "", False)
        return state

    def restore(self) -> None:
        for container in self._empty:
            if container:
                container.clear()
        for undo in reversed(self._undo):
            undo()

    def differing(self, other: State) -> list[str]:
        """Return names of the values that differ."""
        names = dict.fromkeys([*self.leaves, *other.leaves])
        return [n for n in names if not _same(self.leaves.get(n), other.leaves.get(n))]

    def reseed(self, seed: int) -> None:
        """Other numbers from the generators that were found."""
        for generator in self.generators:
            if isinstance(generator, torch.Generator):
                generator.manual_seed(seed)
            elif isinstance(generator, np.random.Generator):
                generator.bit_generator.state = type(generator.bit_generator)(seed).state
            else:
                generator.seed(seed)

    @property
    def positions(self) -> list[str]:
        """How far generators of numpy and Python have gone."""
        return [
            repr(g.bit_generator.state if isinstance(g, np.random.Generator) else _position(g))
            for g in self.generators
            if not isinstance(g, torch.Generator)
        ]

    def saves(self, name: str) -> bool:
        """Return whether ``state_dict`` holds the value of this name."""
        return name in self.leaves and self.leaves[name].saved

    def _walk(self, value: Any, name: str, saved: bool) -> None:
        if isinstance(value, _NUMBERS):
            self.leaves[name] = Leaf(value, saved)
            return
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        self._alive.append(value)
        if isinstance(value, nn.Parameter):
            return
        if isinstance(value, (Tensor, np.ndarray)):
            self._array(value, name, saved)
        elif isinstance(value, nn.Module):
            self._module(value, name)
        elif isinstance(value, (dict, list, set, deque)):
            self._container(value, name)
        elif isinstance(value, (tuple, frozenset)):
            for i, item in enumerate(value):
                self._walk(item, f"{name}[{i}]", False)
        elif isinstance(value, (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)):
            self._generator(value)
        else:
            self._object(value, name)

    def _array(self, value: Any, name: str, saved: bool) -> None:
        content = self._copy(value) if isinstance(value, Tensor) else value.copy()
        self.leaves[name] = Leaf(content, saved)
        version = value._version if isinstance(value, Tensor) and not value.is_inference() else None

        def undo() -> None:
            counted = isinstance(value, Tensor) and value.numel() >= _LARGE and not value.is_inference()
            if value._version == version if counted else _same(Leaf(value, saved), Leaf(content, saved)):
                return
            if isinstance(value, Tensor):
                with torch.no_grad():
                    if value.shape != content.shape:
                        value.resize_(content.shape)
                    value.copy_(content)
            else:
                value.resize(content.shape, refcheck=False)
                value[...] = content

        self._undo.append(undo)

    def _copy(self, value: Tensor) -> Tensor:
        if value.numel() < _LARGE or value.is_inference():
            return value.detach().clone()
        held, version, content = self._copies.get(id(value), (None, -1, value))
        if held is not value or version != value._version:
            content = value.detach().clone()
            self._copies[id(value)] = value, value._version, content
        return content

    def _module(self, module: nn.Module, name: str) -> None:
        self._keep(module.__dict__)
        for attribute, value in module.__dict__.items():
            if attribute in _OF_TORCH:
                if isinstance(value, (dict, set)):
                    self._keep(value)
            elif attribute in ("_parameters", "_buffers", "_modules") and isinstance(value, dict):
                self._keep(value)
                for key, item in value.items():
                    saved = attribute == "_buffers" and key not in module._non_persistent_buffers_set
                    self._walk(item, _join(name, key), saved)
            else:
                self._walk(value, _join(name, attribute), False)

    def _container(self, value: Any, name: str) -> None:
        self._keep(value)
        if isinstance(value, set):  # which has no order
            self.leaves[name] = Leaf(frozenset(v for v in value if isinstance(v, _NUMBERS)), False)
            return
        items = list(value.items() if isinstance(value, dict) else enumerate(value))
        shown = items if len(items) <= _MANY else items[: _MANY // 2] + items[-_MANY // 2 :]
        for key, item in shown:
            self._walk(item, f"{name}[{key!r}]" if isinstance(key, (int, str)) else f"{name}[..]", False)

    def _generator(self, value: Any) -> None:
        self.generators.append(value)
        if isinstance(value, torch.Generator):
            state = value.get_state()
            self._undo.append(lambda: None if torch.equal(value.get_state(), state) else _void(value.set_state(state)))
        elif isinstance(value, np.random.Generator):
            held = copy.deepcopy(value.bit_generator.state)
            self._undo.append(lambda: setattr(value.bit_generator, "state", held))
        elif isinstance(value, np.random.RandomState):
            of_numpy = value.get_state()
            self._undo.append(lambda: value.set_state(of_numpy))
        else:
            of_python = value.getstate()
            self._undo.append(lambda: value.setstate(of_python))

    def _object(self, value: Any, name: str) -> None:
        """Walk what a function closes over, what a method or a partial call is of, or attributes of any other object."""
        if isinstance(value, types.FunctionType):
            for key, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                self._cell(cell, _join(name, key))
        elif isinstance(value, types.MethodType):
            self._walk(value.__self__, name, False)
        elif isinstance(value, functools.partial):
            self._walk((value.func, value.args, value.keywords), name, False)
        elif not isinstance(value, (type, types.ModuleType)) and isinstance(getattr(value, "__dict__", None), dict):
            self._keep(value.__dict__)
            for key, item in list(value.__dict__.items()):
                self._walk(item, _join(name, key), False)

    def _cell(self, cell: Any, name: str) -> None:
        try:
            content = cell.cell_contents
        except ValueError:  # empty: the name isn't bound yet
            return
        self._undo.append(lambda: setattr(cell, "cell_contents", content))
        self._walk(content, name, False)

    def _keep(self, value: Any) -> None:
        """Put back which objects a container holds: others may rely on the container itself."""
        if not value and isinstance(value, (dict, list, set, deque)):
            self._empty.append(value)
            return
        content: Any = (
            dict(value) if isinstance(value, dict) else list(value) if isinstance(value, deque) else value.copy()
        )

        def undo() -> None:
            if isinstance(value, (list, deque)):
                if len(value) != len(content) or any(a is not b for a, b in zip(value, content, strict=True)):
                    value.clear()
                    value.extend(content)
            elif isinstance(value, MutableMapping):
                for key in [k for k in value if k not in content]:
                    del value[key]
                for key, item in content.items():
                    if key not in value or value[key] is not item:
                        value[key] = item
            elif value != content:
                value.clear()
                value.update(content)

        self._undo.append(undo)


class Weights:
    """The weights of a model as they are now, to be put back if a forward pass changes them (an averaged teacher, a clamp)."""

    def __init__(self, model: nn.Module) -> None:
        self._named = dict(model.named_parameters())
        self._before = {n: p.detach().clone() for n, p in self._named.items()}
        self._moving: set[str] = set()

    def look(self) -> dict[str, Tensor]:
        """Return the weights that aren't as they were, which from here on are put back after every pass."""
        moved = {n: p.detach().clone() for n, p in self._named.items() if not torch.equal(p.detach(), self._before[n])}
        self._moving |= set(moved)
        return moved

    def restore(self, *, every: bool = False) -> None:
        """Put back those that are known to move; or every one."""
        with torch.no_grad():
            for name in self._named if every else self._moving:
                if not torch.equal(self._named[name].detach(), self._before[name]):
                    self._named[name].detach().copy_(self._before[name])


def _position(generator: np.random.RandomState | random.Random) -> Any:
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state(legacy=False)


def _join(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)


def _void(_: Any) -> None:
    """Return nothing, for calls made for what they do."""


def _same(x: Leaf | None, y: Leaf | None) -> bool:
    if x is None or y is None:
        return x is y
    a, b = x.value, y.value
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        if (a.shape, a.dtype, a.device, a.layout) != (b.shape, b.dtype, b.device, b.layout):
            return False
        if a.layout is not torch.strided:
            a, b = a.to_dense(), b.to_dense()
        return a.is_meta or torch.equal(a, b) or bool(torch.isclose(a, b, rtol=0, atol=0, equal_nan=True).all())
    if isinstance(a, np.ndarray):
        return a.shape == b.shape and a.dtype == b.dtype and (a.tobytes() == b.tobytes())
    return a == b or (a != a and b != b)
