"""What the attributes of modules hold: every run of a pass begins with the same, and what they leave has to agree.

A number, a text or a constant tensor has no row for each sample. Where samples take several paths, and each path leaves another
one, that of the path that ran last would be taken for all samples'.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from operator import is_
from typing import Any

import numpy as np
from torch import Tensor, nn

from ..autograd.one_by_one import key_of
from ..autograd.vmap import NATIVE, Part
from ..nested import PLAIN_TYPES, instances_in, is_record, replaced
from .outputs import Rows, same

#: What every module of torch holds.
OF_MODULES = frozenset(nn.Module().__dict__)

#: In the place of an attribute that isn't there.
MISSING = object()


class Constant:
    """Holds what a run left that isn't of the samples."""

    def __init__(self, value: Any) -> None:
        self.value = value


#: In the place of a constant: what was left is the samples'.
SAMPLES = object()


def constant(part: Part, left: Any) -> Any:
    """Return what a part left, where it may be no sample's: one that runs by itself doesn't tell. Else :data:`SAMPLES`."""
    if isinstance(left, Constant):
        return left.value
    rows = list(instances_in(left, Rows))
    if part.level != NATIVE or any(r.physical.requires_grad for r in rows):
        return SAMPLES
    return replaced(left, lambda v: v.physical[0] if isinstance(v, Rows) else v)


class Disagree(Exception):
    """Runs of one pass left different things."""


class Kept:
    """The attributes of modules before a pass.

    Args:
        modules: whose.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._before = {module: dict(module.__dict__) for module in modules}
        self._contents: dict[int, tuple[Any, Any]] = {}
        self._containers: dict[nn.Module, list[tuple[str, bool]]] = {}  # names; whether it holds nothing but numbers and texts
        self._is_as_before = True
        for module, held in self._before.items():
            for name, value in held.items():
                if (type(value) is dict or type(value) is list) and name not in OF_MODULES:
                    self._contents[id(value)] = (value, value.copy())
                    plain = PLAIN_TYPES.issuperset(map(type, value.values() if type(value) is dict else value))
                    self._containers.setdefault(module, []).append((name, plain))

    def before(self, module: nn.Module, name: str) -> Any:
        """Return the attribute; a list or dictionary has what was in it."""
        value = self._before[module].get(name, MISSING)
        return self._contents[id(value)][1] if id(value) in self._contents else value

    def content(self, container: Any) -> Any:
        """Return what was in a list or dictionary; it is empty if the pass made it."""
        return self._contents[id(container)][1] if id(container) in self._contents else type(container)()

    def now(self) -> Iterator[tuple[nn.Module, str, Any]]:
        """Yield the attributes that may have changed: another object, or a list or dictionary."""
        self._is_as_before = True
        for module, before in self._before.items():
            held = module.__dict__
            # Most modules leave nothing, which is quick to see: the very same objects under the same names.
            if len(held) == len(before) and all(map(is_, held.values(), before.values())) and held.keys() == before.keys():
                for name, plain in self._containers.get(module, ()):
                    # Adapters hold dozens of settings: the same numbers as before are nothing left.
                    if not (plain and is_unchanged(before[name], self._contents[id(before[name])][1])):
                        self._is_as_before = False
                        yield module, name, before[name]
                continue
            self._is_as_before = False
            for name, value in held.items():
                if name not in OF_MODULES and (value is not before.get(name, MISSING) or id(value) in self._contents):
                    yield module, name, value

    def put_back_if_moved(self) -> None:
        """Put the attributes back, unless the last look (:meth:`now`, to its end), after which nothing ran, found nothing moved."""
        if not self._is_as_before:
            self.put_back()

    def put_back(self) -> None:
        """Put the attributes back as they were."""
        for module, name, value in list(self.now()):
            before = self._before[module].get(name, MISSING)
            if before is MISSING:
                del module.__dict__[name]
            elif value is not before:
                module.__dict__[name] = before
        for module, before in self._before.items():
            for name in before.keys() - module.__dict__.keys():
                module.__dict__[name] = before[name]
        for container, before in self._contents.values():
            if not is_unchanged(container, before):
                refill(container, before)


def refill(container: Any, content: Any) -> None:
    """Make a list, a queue or a mapping hold this and nothing else."""
    content = copy.copy(content)
    container.clear()
    container.update(content) if isinstance(container, MutableMapping) else container.extend(content)


def is_unchanged(container: Any, content: Any) -> bool:
    """Return whether a list, a queue or a mapping holds these very objects."""
    if len(container) != len(content):
        return False
    if isinstance(container, Mapping):
        return all(key in content and content[key] is value for key, value in container.items())
    return all(map(is_, container, content))


def agreed(values: Sequence[Any]) -> Any:
    """Return what all runs left: of tensors that begin alike (positions, for the longest sequence so far) the longest.

    Raises:
        Disagree: it isn't the same.
    """
    found = values[0]
    for value in values[1:]:
        if _begins(value, found):
            found = value
        elif not _begins(found, value):
            raise Disagree
    return found


def alike(value: Any, other: Any) -> bool:
    """Return whether two values are equal: numbers, text, tensors and arrays, nested in lists, tuples, mappings and dataclasses."""
    return _begins(value, other) and _begins(other, value)


def _begins(value: Any, other: Any) -> bool:
    """Return whether ``value`` is ``other``, or a tensor that begins with it in every dimension. Objects aren't looked into."""
    if value is other:
        return True
    if isinstance(value, Tensor) and isinstance(other, Tensor):
        if value.shape == other.shape or value.dim() != other.dim():
            return same(value, other)
        if type(value) is not type(other) or value.requires_grad or other.requires_grad:
            return False
        fits = all(n >= m > 0 for n, m in zip(value.shape, other.shape, strict=True))
        return fits and same(value[tuple(slice(m) for m in other.shape)], other)
    if type(value) is not type(other):
        return False
    if isinstance(value, Mapping):
        return value.keys() == other.keys() and all(_begins(value[key], other[key]) for key in value)
    if isinstance(value, (tuple, list)):
        return len(value) == len(other) and all(map(_begins, value, other))
    if isinstance(value, np.ndarray):
        return value.dtype == other.dtype and np.array_equal(value, other, equal_nan=value.dtype.kind in "fc")
    if is_record(value):
        return all(_begins(getattr(value, n), getattr(other, n)) for n in value.__dataclass_fields__)
    return not isinstance(value, (bool, int, float, complex, str, bytes, np.generic)) or key_of(value) == key_of(other)
