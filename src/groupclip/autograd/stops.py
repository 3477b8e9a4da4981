"""What ends a run of the model's code before its end: those who run it go on otherwise."""

from __future__ import annotations

import os
import sys
from collections.abc import Hashable

import torch
from torch import Tensor

#: A place in the model's code.
Position = tuple[str, int]


class Stop(BaseException):
    """The run is over: the model's code goes no further. No error of the model's, so that its ``except Exception`` lets it pass."""


class Differ(Stop):
    """Samples that ran together take different paths from here.

    Args:
        keys: one for each of them: those with the same key may go on together.
        outside: what comes isn't seen by vmap: each must go on by itself, without it.
        by_chance: random numbers decide on the path (:mod:`.chance`).
    """

    def __init__(self, keys: list[Hashable], *, outside: bool = False, by_chance: bool = False) -> None:
        super().__init__("samples take different paths")
        self.keys, self.outside, self.by_chance = keys, outside, by_chance


class NeedsOwn(Stop):
    """A tensor that the model made for all samples is written to by each of them: each needs its own."""

    def __init__(self, written: Tensor, error: Exception) -> None:
        super().__init__(str(error))
        self.written = written
        self.made_at: Position | None = None


def position() -> Position:
    """Find the line of the model's code that is running, for the handler of operations."""
    frame = sys._getframe(3)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_TORCH):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


_TORCH = os.path.dirname(torch.__file__)
