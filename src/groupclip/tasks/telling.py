"""What is told while files are read: how far it is, and which of them can't be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Told = Callable[[int, int], None]
"""Told of work that goes on: how much of it is done, and how much there is."""


class UnreadableImages(ValueError):
    """Files that can't be decoded. ``listed``: one line for each, without advice."""

    def __init__(self, bad: Sequence[tuple[Path, str]], advice: str) -> None:
        self._told = (tuple(bad), advice)
        self.listed = "\n".join(f"  {path}: {reason}" for path, reason in bad)
        count = f"{len(bad)} files" if len(bad) > 1 else "a file"
        super().__init__(f"{count} can't be read as an image:\n{self.listed}\n{advice}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._told, self.__dict__  # a worker raises it too
