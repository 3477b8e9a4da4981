"""What a pass did hold: live bytes on any device, and the allocator's own account on CUDA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.attach import attach
from ..nested import tensors_in
from ..partition.groups import Partition
from .live import Live
from .passes import Curve, as_with_noise
from .workload import Loss, batch_bytes, default_loss


def measure(model: nn.Module, batch: Any, groups: Partition | str | None = None, *, loss: Loss = default_loss) -> Curve:
    """Run one pass twice, the first time to warm up, and count the second. Gradients are cleared; nothing is stepped.

    Args:
        model: not attached.
        batch, loss: as of :func:`groupclip.memory.plan`.
        groups: to clip with; None measures training without privacy.

    Returns:
        Live bytes beside parameters and buffers, the batch included: comparable to :attr:`Plan.curve` level by level.
    """
    engine = None if groups is None else as_with_noise(attach(model, None, groups, None))
    parameters = list(model.parameters())

    def run() -> None:
        losses = loss(model, batch)
        losses.sum().backward() if engine is None else engine.backward(losses)

    try:
        run()
        _clear(parameters)
        with Live([*parameters, *model.buffers(), *tensors_in(batch)]) as live:
            run()
    finally:
        if engine is not None:
            engine.detach()
        _clear(parameters)
    held = batch_bytes(batch)
    return Curve(tuple(level + held for level in live.curve), live.peak + held)


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


def _clear(parameters: Sequence[Tensor]) -> None:
    for p in parameters:
        p.grad = None
