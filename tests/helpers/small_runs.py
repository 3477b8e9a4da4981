"""Runs of a second: a linear model on the digits, and observers that end a run in every way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from groupclip.run import Nobody, RunInterrupted, start

STEPS = 8
REQUEST: dict[str, Any] = {
    "task": "digits", "model": "linear", "clipping": "layer-wise", "epsilon": 3.0, "steps": STEPS, "batch_size": 64,
    "eval_every": 4, "device": "cpu",
}  # fmt: skip
SELDOM = 1e9  # seconds between checkpoints: never of itself


class StopAfter(Nobody):
    """Asks to stop after the row of a step; what Ctrl-C does."""

    def __init__(self, step: int) -> None:
        self._last, self._seen = step, 0

    def step(self, row: Mapping[str, Any]) -> None:
        self._seen = row["step"]

    def stop_requested(self) -> bool:
        return self._seen >= self._last


class At(Nobody):
    """Does something when the row of a step is told."""

    def __init__(self, step: int, action: Callable[[], None]) -> None:
        self._at, self._action = step, action

    def step(self, row: Mapping[str, Any]) -> None:
        if row["step"] == self._at:
            self._action()


def stopped_run(out: Path, after: int) -> None:
    """A run that was stopped cleanly after a step."""
    try:
        start(REQUEST, out, checkpoint_seconds=SELDOM).train(StopAfter(after))
    except RunInterrupted:
        return
    raise AssertionError("the run wasn't interrupted")


def contents(root: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
