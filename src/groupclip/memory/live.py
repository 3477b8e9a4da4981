"""Live bytes over a pass, counted below autograd, on any device.

A storage counts from the operation that first returns a tensor on it until it is freed, so the figures don't depend on
the allocator. What an operation allocates and frees inside its kernel isn't seen; what existed before counts zero.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..nested import tensors_in


class Live(TorchDispatchMode):
    """Watches the operations of a pass.

    Args:
        before: tensors that exist already.

    Attributes:
        live, peak: bytes.
        curve: live bytes after each operation, in order.
        calls: how often each operation ran.
    """

    def __init__(self, before: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.curve: list[int] = []
        self.calls: Counter[str] = Counter()
        self._sizes = {t.untyped_storage()._cdata: 0 for t in before}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls[func.overloadpacket.__name__] += 1
        for tensor in tensors_in(out):
            self._see(tensor)
        self.curve.append(self.live)
        return out

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            size = storage.nbytes()
            self._sizes[key] = size
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._freed, key)

    def _freed(self, key: int) -> None:
        size = self._sizes.pop(key)
        self.live -= size
        self.died(key, size)

    def died(self, storage: int, size: int) -> None:
        """Called when a storage of ``size`` bytes is freed."""


def watch(run: Callable[[], object], before: Iterable[Tensor]) -> Live:
    """Run once to warm up (lazy initialisation, what is tried out once), clear gradients, and run again watched."""
    before = list(before)
    run()
    for tensor in before:
        tensor.grad = None
    with Live(before) as seen:
        run()
    return seen
