"""The modules of a model and what they hold, in one loop: it is asked in every pass, and torch's own generators recurse."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn


def modules_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return every module once, under the name by which torch knows it first."""
    seen: set[int] = set()
    found: list[tuple[str, nn.Module]] = []
    waiting: list[tuple[str, nn.Module]] = [("", model)]
    while waiting:
        name, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        found.append((name, module))
        children = module._modules
        if children:
            prefix = name + "." if name else ""
            waiting += [(prefix + key, child) for key, child in reversed(children.items()) if child is not None]
    return found


def each_module(model: nn.Module) -> list[nn.Module]:
    """Return every module once, in the order of :func:`modules_of` and without names: quicker, for every step."""
    found: dict[int, nn.Module] = {}
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if id(module) not in found:
            found[id(module)] = module
            if module._modules:
                waiting += [child for child in reversed(module._modules.values()) if child is not None]
    return list(found.values())


def published_in(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and persistent buffers, by name: what ``state_dict`` holds."""
    for name, module in modules_of(model):
        prefix = name + "." if name else ""
        for key, param in module._parameters.items():
            if param is not None:
                yield prefix + key, param
        for key, buffer in module._buffers.items():
            if buffer is not None and key not in module._non_persistent_buffers_set:
                yield prefix + key, buffer


def name_of(model: nn.Module, module: nn.Module, name: str) -> str:
    """Return the name of what a module holds, as ``state_dict`` has it."""
    prefix = next(prefix for prefix, other in modules_of(model) if other is module)
    return f"{prefix}.{name}" if prefix else name


def versions_in(modules: list[nn.Module]) -> list[tuple[Tensor, int]]:
    """Return what a pass may move in place, with its version: all but what the optimizer moves."""
    found: list[tuple[Tensor, int]] = []
    with torch._C.DisableTorchFunctionSubclass():
        for module in modules:
            for held in (module._parameters, module._buffers):
                for tensor in held.values():
                    if tensor is None or tensor.is_inference() or (held is module._parameters and tensor.requires_grad):
                        continue
                    found.append((tensor, tensor._version))
    return found
