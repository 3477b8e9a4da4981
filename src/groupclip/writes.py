"""Which memory the functions of torch write, while a model runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.overrides import TorchFunctionMode


class Writes(TorchFunctionMode):
    """Sees what is about to be written, through whatever view: past the version that autograd counts too (``x.data``)."""

    def __init__(self, about_to_write: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._tell = about_to_write

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not torch.compiler.is_compiling() and (_writes(func) or "out" in kwargs):
            with torch._C.DisableTorchFunctionSubclass():
                for target in _targets(args, kwargs):
                    if isinstance(target, Tensor) and not opaque(target):
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


def memory_of(tensor: Tensor) -> int:
    """The same for all views of it, as long as one of them lives."""
    return tensor.untyped_storage()._cdata


def opaque(tensor: Tensor) -> bool:
    """Whether it has no memory of its own to look at."""
    return tensor.layout is not torch.strided or _functorch.is_functorch_wrapped_tensor(tensor)
