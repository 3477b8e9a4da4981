"""What is told while a task's files are read, and of what was left out."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import TYPE_CHECKING

from .counting import Counting

if TYPE_CHECKING:
    from rich.console import Console

_MANY = 1000  # below that, reading takes seconds


class Loading:
    """Shows, while entered, how many of all images are decoded; it is called with both numbers."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stack = contextlib.ExitStack()
        self._count: Counting | None = None

    def __enter__(self) -> Loading:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stack.close()

    def __call__(self, done: int, of: int) -> None:
        if self._count is None:
            if of < _MANY and not self._console.is_terminal:
                return
            self._count = self._stack.enter_context(Counting(self._console, "decoding images", of, "images"))
        self._count(done)

    def remarks(self, remarks: tuple[str, ...]) -> None:
        """Show a task's remarks, for whoever owns the data; they go into no file."""
        for remark in remarks:
            self._console.print(remark, markup=False, soft_wrap=True)
