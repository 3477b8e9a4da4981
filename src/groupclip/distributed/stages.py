"""Pipeline stages (``torch.distributed.pipelining``), which can't train privately, refused by name."""

from __future__ import annotations

import sys
from typing import Any

from ..errors import UnsupportedOperation

_PIPELINING = "torch.distributed.pipelining"
_WHY = (
    "Pipeline stages can't train privately: the rank of a stage knows neither the other stages' thresholds, which the noise of "
    "every coordinate must count, nor whether they took the same batch; and a schedule runs the passes of several micro-batches "
    "before the backward pass of the first, which are told apart by their order. Use fully_shard, or one process with the model's "
    "layers on several devices and groups='per-device'"
)


def check_no_stage(model: Any) -> None:
    """Refuse a stage or a schedule in the place of a model.

    Raises:
        UnsupportedOperation: says why, and what to use.
    """
    if any(cls.__module__.startswith(_PIPELINING) for cls in type(model).__mro__):
        raise UnsupportedOperation(f"the model is a {type(model).__name__} of {_PIPELINING}. {_WHY}")


def check_no_schedule() -> None:
    """Refuse a call of the model by a schedule.

    Raises:
        UnsupportedOperation: says why, and what to use.
    """
    if f"{_PIPELINING}.stage" not in sys.modules:
        return
    frame = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_PIPELINING):
            raise UnsupportedOperation(f"the model is called as a stage of {_PIPELINING}. {_WHY}")
        frame = frame.f_back
