"""A cell that takes hours survives a stop: its state is kept now and then, and the same command goes on from there.

Which batch runs out of memory, or holds a record that can't be read, depends on what is in it: drawing another in its place would
choose batches. So a step is charged on the disk before its batch is drawn (:mod:`groupclip.run.journal`), and what a crash
loses stays charged: the one step that failed, or after a kill those since the last checkpoint, with fewer updates in the weights.

The state is secret: it is written for its owner alone, and deleted when the result is there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..engine.averages import WeightAverage
from ..engine.engine import Engine
from ..run import checkpoint
from ..run.checkpoint import Progress
from ..run.journal import Journal, read_journal
from . import results
from .results import ResultError

SECONDS = 600.0  # between two checkpoints
_FREE = ("microbatch",)  # changes memory and time alone: smaller after a crash, perhaps


class Underway:
    """The state of one cell on the disk, beside its result to be. Without a folder nothing is kept.

    Args:
        folder, experiment, cell: as of :class:`groupclip.paper.results.Result`.
        settings: JSON-able; a state that was made with others is refused.
        seconds: between two checkpoints.

    Attributes:
        average: of the weights, kept with them; None where there is none.
    """

    def __init__(
        self, folder: Path | None, experiment: str, cell: Mapping[str, Any], settings: Mapping[str, Any], seconds: float = SECONDS
    ) -> None:  # fmt: skip
        self.path: Path | None = None
        if folder is not None:
            file = results.cell_file(folder, experiment, cell)
            self.path = file.parent / "underway" / f"{file.stem}.safetensors"
        kept = {name: value for name, value in settings.items() if name not in _FREE}
        self._settings = json.loads(json.dumps({"cell": dict(cell), "settings": kept}, default=dict))
        self._seconds, self._saved = seconds, time.monotonic()
        self._progress = Progress()
        self._journal: Journal | None = None
        self.average: WeightAverage | None = None

    def restore(self, model: nn.Module, optimizer: Optimizer, engine: Engine | None) -> Progress:
        """Put the kept state into model, optimizer and engine; of a private cell the ledger counts every charged step.

        Raises:
            ResultError: it was made with other settings.
            RunFailed: it is damaged.
            PrivacyViolation: its journal is gone or damaged, or its plan is another.
        """
        if self.path is None:
            return self._progress
        journal = _journal_of(self.path)
        if self.path.exists():
            kept = checkpoint.load(self.path)
            if kept.config != self._settings:
                raise ResultError(f"{self.path} is a run under way with other settings; delete it to begin this cell anew")
            self._progress = kept.progress
            if engine is not None and engine.mechanism is not None:
                charged = min(read_journal(journal), engine.mechanism.steps)
                state, self._progress = checkpoint.charged_to(kept, charged)
                engine.load_state_dict(state)
            model.load_state_dict(kept.weights)
            optimizer.load_state_dict(kept.optimizer)
            if self.average is not None:
                self.average.load_state_dict(kept.average)
        if engine is not None and engine.ledger is not None:
            journal.parent.mkdir(parents=True, exist_ok=True)
            self._journal = Journal(journal, engine.ledger.steps)
            if not self.path.exists():
                self.save(0, model, optimizer, engine)  # a step that is charged needs a state that it is charged to
        return self._progress

    def charge(self) -> None:
        """Charge a private step before its batch is drawn. OSError: the disk refuses, so the step must not be taken."""
        if self._journal is not None:
            self._journal.charge()

    def due(self) -> bool:
        """Return whether the last checkpoint is long enough ago."""
        return self.path is not None and time.monotonic() - self._saved >= self._seconds

    def save(self, updates: int, model: nn.Module, optimizer: Optimizer, engine: Engine | None) -> None:
        """Keep the state after ``updates`` updates of the weights."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        state = {} if engine is None else engine.state_dict()
        progress = Progress(updates=updates, lost=self._progress.lost)
        checkpoint.save(self.path, self._settings, model, optimizer, state, progress, self.average)
        self._saved = time.monotonic()

    def close(self) -> None:
        """End: no step is charged any more."""
        if self._journal is not None:
            self._journal.close()

    def end(self) -> None:
        """Forget the state: the result is there."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
            _journal_of(self.path).unlink(missing_ok=True)
            if self.path.parent.exists() and not any(self.path.parent.iterdir()):
                self.path.parent.rmdir()


def _journal_of(path: Path) -> Path:
    return path.with_suffix(".jsonl")
