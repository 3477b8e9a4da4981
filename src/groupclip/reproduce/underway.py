"""A cell that takes hours survives a stop: its state is kept now and then, and the same command goes on from there.

What a crash loses is taken again, on fresh batches with fresh noise. That costs no privacy: nothing of a cell leaves the process
before its result does (no metric, no loss, no norm), so the lost steps were never released. The state itself is secret: it is
written for its owner alone, and deleted when the result is there. (``groupclip train`` shows figures on the way, so it charges
every step on the disk first; see :mod:`groupclip.run.journal`.)
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..engine import Engine
from ..run import checkpoint
from ..run.checkpoint import Progress
from . import results
from .results import ResultError

SECONDS = 600.0  # between two checkpoints


class Underway:
    """The state of one cell on the disk, beside its result to be. Without a folder nothing is kept.

    Args:
        folder, experiment, cell: as of :class:`groupclip.reproduce.results.Result`.
        settings: JSON-able; a state that was made with others is refused.
        seconds: between two checkpoints.
    """

    def __init__(
        self, folder: Path | None, experiment: str, cell: Mapping[str, Any], settings: Mapping[str, Any], seconds: float = SECONDS
    ) -> None:  # fmt: skip
        self.path: Path | None = None
        if folder is not None:
            file = results.cell_file(folder, experiment, cell)
            self.path = file.parent / "underway" / f"{file.stem}.safetensors"
        self._settings = json.loads(json.dumps({"cell": dict(cell), "settings": dict(settings)}, default=dict))
        self._seconds, self._saved = seconds, time.monotonic()

    def restore(self, model: nn.Module, optimizer: Optimizer, engine: Engine | None) -> int:
        """Put the kept state into model, optimizer and engine; how many steps were taken, 0 if nothing is kept.

        Raises:
            ResultError: it was made with other settings.
            RunFailed: it is damaged.
        """
        if self.path is None or not self.path.exists():
            return 0
        kept = checkpoint.load(self.path)
        if kept.config != self._settings:
            raise ResultError(f"{self.path} is a run under way with other settings; delete it to begin this cell anew")
        model.load_state_dict(kept.weights)
        optimizer.load_state_dict(kept.optimizer)
        if engine is not None:
            engine.load_state_dict(kept.engine)
        return kept.progress.updates

    def due(self) -> bool:
        """Whether the last checkpoint is long enough ago."""
        return self.path is not None and time.monotonic() - self._saved >= self._seconds

    def save(self, steps: int, model: nn.Module, optimizer: Optimizer, engine: Engine | None) -> None:
        """Keep the state after ``steps`` steps."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        state = {} if engine is None else engine.state_dict()
        checkpoint.save(self.path, self._settings, model, optimizer, state, Progress(updates=steps))
        self._saved = time.monotonic()

    def end(self) -> None:
        """The result is there: forget the state."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
            if self.path.parent.exists() and not any(self.path.parent.iterdir()):
                self.path.parent.rmdir()
