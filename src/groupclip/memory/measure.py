"""What a pass did hold: live bytes, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


def _clear(parameters: Sequence[Tensor]) -> None:
    for p in parameters:
        p.grad = None
