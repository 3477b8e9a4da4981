"""What a sample that runs by itself may write into: the next one must find it as the first did.

Buffers, and tensors and arrays in attributes of modules, also inside lists, dictionaries and dataclasses. What a model keeps
elsewhere (in a global variable, a closure, an object of its own) isn't seen.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, MutableMapping, Sequence, Set
from operator import is_
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..nested import has_numbers, is_record

#: What every module of torch holds.
_OF_MODULES = frozenset(nn.Module().__dict__)


def written_into(modules: Sequence[nn.Module]) -> list[Any]:
    """Return the tensors, arrays and containers that modules hold, each once."""
    found: dict[int, Any] = {}
    for module in modules:
        for buffer in module._buffers.values():
            if buffer is not None:
                found[id(buffer)] = buffer
        for name, value in module.__dict__.items():
            if name not in _OF_MODULES:
                _gather(value, found)
    return list(found.values())


def _gather(value: Any, found: dict[int, Any]) -> None:
    if id(value) in found:
        return
    if isinstance(value, Tensor):
        if not isinstance(value, nn.Parameter):
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
    return isinstance(value, SimpleNamespace) or is_record(value)


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
    elif _has_fields(held):
        _put_into(vars(held), before)
    elif isinstance(held, MutableMapping):
        _put_into(held, before)
    elif len(held) != len(before) or not all(map(is_, held, before)):
        held.clear()
        held.extend(before)


def _put_into(held: MutableMapping[Any, Any], before: Mapping[Any, Any]) -> None:
    if len(held) != len(before) or not all(key in held and held[key] is value for key, value in before.items()):
        held.clear()
        held.update(before)
