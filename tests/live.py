"""Live bytes and counted products of a pass, on any device, seen from below autograd.

Storages are counted when an operation first returns a tensor on them and until they are freed, so the peak doesn't
depend on the allocator. What existed before (parameters, inputs) counts zero.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


class Live(TorchDispatchMode):
    """``live`` and ``peak`` bytes, and ``calls``: how often each operation ran."""

    def __init__(self, before: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.calls: Counter[str] = Counter()
        self._sizes = {t.untyped_storage()._cdata: 0 for t in before}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls[func.overloadpacket.__name__] += 1
        tree_map_only(Tensor, self._see, out)
        return out

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            self.live += storage.nbytes()
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._freed, key)

    def _freed(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


def watch(run: Callable[[], object], before: Iterable[Tensor]) -> Live:
    """Run once to warm up (lazy initialisation, the layout pass), clear gradients, and run again watched."""
    before = list(before)
    run()
    for tensor in before:
        tensor.grad = None
    with Live(before) as seen:
        run()
    return seen


def products(seen: Live) -> int:
    """Matrix products and convolutions."""
    names = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")
    return sum(seen.calls[name] for name in names)


__all__ = ["Live", "products", "watch"]
