"""``BatchMemoryManager``: logical batches in pieces that fit the memory; the optimizer steps at the end of each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from .batches import PrivateLoader
from .optimizer import PrivateOptimizer


class BatchMemoryManager:
    """Splits the batches of a private loader. The result doesn't depend on the size of the pieces.

    Args:
        data_loader: that ``make_private`` returned.
        max_physical_batch_size: most samples in a piece.
        optimizer: that ``make_private`` returned. Inside a logical batch its ``step`` and ``zero_grad`` do nothing.

    Raises:
        TypeError: a loader or an optimizer that make_private didn't return.
        ValueError: less than one sample.
    """

    def __init__(self, *, data_loader: Any, max_physical_batch_size: int, optimizer: Any) -> None:
        for name, value, kind in (
            ("data_loader", data_loader, PrivateLoader),
            ("optimizer", optimizer, PrivateOptimizer),
        ):
            if not isinstance(value, kind):
                raise TypeError(f"{name} is {type(value).__name__}: pass the one that PrivacyEngine.make_private returned")
        if isinstance(max_physical_batch_size, bool) or not isinstance(max_physical_batch_size, int):
            raise TypeError(f"max_physical_batch_size={max_physical_batch_size!r} must be a whole number (int)")
        if max_physical_batch_size < 1:
            raise ValueError(f"max_physical_batch_size={max_physical_batch_size} must be >= 1")
        self._pieces = _Pieces(data_loader, max_physical_batch_size, optimizer)
        self._optimizer: PrivateOptimizer = optimizer

    def __enter__(self) -> _Pieces:
        return self._pieces

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._optimizer.give_up()


class _Pieces:
    """The loader inside the ``with``: its items are pieces of logical batches, or one empty batch."""

    def __init__(self, loader: PrivateLoader, most: int, optimizer: PrivateOptimizer) -> None:
        self._loader, self._most, self._optimizer = loader, most, optimizer
        self.dataset = loader.dataset

    def __len__(self) -> int:
        """Return how many pieces an epoch has on average; the number itself is secret."""
        size = self._loader.sample_rate * len(self.dataset)
        return math.ceil(len(self._loader) * max(1.0, size / self._most))

    def __iter__(self) -> Iterator[Any]:
        self._optimizer.give_up()
        for logical in self._loader.logical(self._most):
            ended = False
            try:
                for piece, last in _with_the_end(self._loader, logical):
                    self._optimizer.signal_skip_step(do_skip=not last)
                    yield piece
                ended = True
            finally:
                if not ended:  # a break, or an error: its samples must not come into the next step
                    self._optimizer.give_up()


def _with_the_end(loader: PrivateLoader, logical: Any) -> Iterator[tuple[Any, bool]]:
    """Yield each piece, and whether it is the last; one empty piece where there is none."""
    pieces = iter(logical)
    piece = next(pieces, None)
    if piece is None:
        yield loader.empty(), True
        return
    while piece is not None:
        following = next(pieces, None)
        yield piece, following is None
        piece = following
