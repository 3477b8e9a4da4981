"""Run what was compiled as it was written while samples run side by side."""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch


class as_written:
    """Runs inside what was compiled as it was written: compilers don't know samples side by side.

    Torch's stance is one for the process, so threads that are inside at the same time share it.
    """

    _lock = threading.Lock()
    _inside = 0
    _stance: Any = None

    def __enter__(self) -> None:
        with as_written._lock:
            if as_written._inside == 0 and "torch._dynamo" in sys.modules:
                as_written._stance = torch.compiler.set_stance("force_eager")
                as_written._stance.__enter__()
            as_written._inside += 1

    def __exit__(self, *error: object) -> None:
        with as_written._lock:
            as_written._inside -= 1
            if as_written._inside == 0 and as_written._stance is not None:
                stance, as_written._stance = as_written._stance, None
                stance.__exit__(None, None, None)
