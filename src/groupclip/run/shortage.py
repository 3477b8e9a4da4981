"""Memory that isn't enough: told as such, with the settings that need less."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from .errors import ConfigError

OF_RECORDS, OF_MODELS = ("max_length", "image_size"), ("model", "vocabulary", "image_size")
_OF_TORCH = ("DefaultCPUAllocator", "not enough memory", "Storage size calculation overflowed")


def is_shortage(error: BaseException) -> bool:
    """Return whether the error says that memory couldn't be had. On the CPU torch has no type of its own for it."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OF_TORCH)


@contextlib.contextmanager
def enough_memory(what: str, *settings: str) -> Iterator[None]:
    """Turn a shortage inside into a ConfigError: ``what`` doesn't fit, and smaller ``settings`` (names) would help."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_shortage(error):
            raise
        smaller = ", ".join(f"{name}=..." for name in settings)
        raise ConfigError(f"memory can't hold {what}. What needs less: smaller values of {smaller}") from error
