"""What CUDA's allocator says of a pass: an account to hold live bytes against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def allocator_peak(run: Callable[[], object]) -> int:
    """Return the most bytes that CUDA's allocator had given out while ``run`` ran, above those before it.

    The allocator rounds every block up to 512 bytes, and kernels' workspaces count: a little more than live bytes.

    Raises:
        RuntimeError: there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("the allocator's account needs a CUDA device; on the CPU, measure() counts live bytes")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def allocator_curve(run: Callable[[], object]) -> tuple[int, ...]:
    """Return bytes given out by CUDA's allocator after each allocation and release in ``run``, from its recorded history.

    Raises:
        RuntimeError: there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("the allocator's history needs a CUDA device; on the CPU, measure() counts live bytes")
    memory = torch.cuda.memory
    memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=1_000_000)
    try:
        run()
        torch.cuda.synchronize()
        snapshot: Any = memory._snapshot()
        traces = snapshot["device_traces"][torch.cuda.current_device()]
    finally:
        memory._record_memory_history(enabled=None)
    return history_curve(traces)


def history_curve(events: list[dict[str, Any]]) -> tuple[int, ...]:
    """Levels from the events of an allocator's history: ``{"action": "alloc" or "free_completed" .., "size": ..}``."""
    level, levels = 0, []
    for event in events:
        if event["action"] == "alloc":
            level += event["size"]
        elif event["action"] == "free_completed":
            level -= event["size"]
        else:
            continue
        levels.append(level)
    return tuple(levels)
