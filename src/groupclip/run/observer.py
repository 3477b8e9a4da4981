"""Who watches a run: a progress bar, or nobody. Everything shown is noisy, held out or planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..partition.groups import Partition
from .config import RunConfig


@dataclass(frozen=True)
class Beginning:
    """Holds what is known before a process's first step. ``done``: steps charged before it. ``unit``: of privacy.

    bands, rounds: of the plan with correlated noise; (1, the steps) with independent noise.
    ends: why the run ends before its last planned step; empty if it doesn't.
    """

    config: RunConfig
    partition: Partition
    noise_multiplier: float
    done: int
    lost: int
    unit: str = "sample"
    bands: int = 1
    rounds: int = 0
    ends: str = ""


class Observer(Protocol):
    """Told of a run as it goes; asked after every step whether to stop."""

    def pretraining(self, step: int, steps: int) -> None:
        """Hear that public pretraining has done ``step`` of ``steps``, before :meth:`begin`."""
        ...

    def begin(self, beginning: Beginning) -> None: ...

    def step(self, row: Mapping[str, Any]) -> None:
        """Hear of a row of ``metrics.jsonl``: see :mod:`groupclip.run.metrics`."""
        ...

    def stop_requested(self) -> bool: ...


class Nobody:
    """Watches nothing and never stops."""

    def pretraining(self, step: int, steps: int) -> None:
        pass

    def begin(self, beginning: Beginning) -> None:
        pass

    def step(self, row: Mapping[str, Any]) -> None:
        pass

    def stop_requested(self) -> bool:
        return False
