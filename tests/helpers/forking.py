"""Runs a function in a forked child, as multiprocessing does on Linux, and gives what it returns."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def begin_fork(act: Callable[[], str]) -> tuple[int, int]:
    """Begin a child that does ``act``; return its process id and what :func:`end_fork` reads."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            told = act()
        except BaseException:
            told = traceback.format_exc()
        os.write(writes, told.encode())
        os._exit(0)  # no clean-up of the parent's
    os.close(writes)
    return child, reads


def end_fork(begun: tuple[int, int]) -> str:
    """Wait for the child, and return what its ``act`` returned, or the text of its error."""
    child, reads = begun
    with os.fdopen(reads) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told


def in_fork(act: Callable[[], str]) -> str:
    """Do ``act`` in a child, and return what it returned."""
    return end_fork(begin_fork(act))
