"""The steps of a run: charge, draw, clip, add noise, update, tell, keep."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..errors import GroupClipError, PrivacyViolation
from ..sampling.batches import LogicalBatches, logical_batches
from ..tasks import Task
from ..tasks.imagefiles import ImageFiles
from . import checkpoint
from .build import Trainer
from .checkpoint import Progress
from .company import company
from .config import RunConfig
from .errors import RunFailed, RunInterrupted
from .evaluate import Evaluation, evaluate
from .files import PUBLIC, Lines, said_plainly
from .folder import RunFolder
from .journal import Journal, read_journal
from .losses import unit_losses
from .metrics import EpsilonCurve, noisy_norms, row_text
from .observer import Observer
from .optimizers import learning_rate
from .shortage import is_shortage
from .steps import PrivateSteps


def ended(config: RunConfig, last: int) -> str:
    """Say where a run ends whose interruptions cost rounds of correlated noise."""
    return (
        f"the run ends after step {last} of {config.steps}, or it would pass epsilon {config.epsilon:g}: noise that is correlated "
        "over steps is begun anew by a run that goes on, which costs a round (none where all stops are at multiples of --bands). "
        f"If stops are to come, --bands 1 takes all steps; --steps {last} plans for no more than these"
    )


def _refuse_anew(known: tuple[int, ...], begun: tuple[int, ...]) -> None:
    """Raise PrivacyViolation if noise would be begun where the journal doesn't tell: that may lead past the plan's epsilon."""
    if begun != known:
        raise PrivacyViolation(
            f"correlated noise would be begun anew at step {begun[-1] + 1}, inside the run, which costs a round that its epsilon "
            "has no room for: a parameter got another type, shape or device since the step before. Leave the model as it is"
        )


@dataclass(frozen=True)
class _Kept:
    """The files of a run that grow with every step."""

    journal: Journal
    metrics: Lines

    def close(self) -> None:
        self.journal.close()
        self.metrics.close()


class Loop:
    """Takes the planned steps that are left, and none that would lead past the plan's epsilon. The ledger counts every charged
    step when it begins.

    Attributes:
        last: the step after which the run ends.
    """

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        trainer: Trainer,
        folder: RunFolder,
        progress: Progress,
        checkpoint_seconds: float,
        workers: int,
    ) -> None:
        assert trainer.engine.ledger is not None
        self.config, self.task, self.trainer, self.folder = config, task, trainer, folder
        self.ledger = trainer.engine.ledger
        self.progress = progress
        self.evaluation: Evaluation | None = None  # of the weights as they are
        self.last = self.ledger.last_step  # the plan's, unless interruptions cost rounds of correlated noise
        self._curve = EpsilonCurve(self.ledger, config.delta, self.last)
        self._seconds, self._workers = checkpoint_seconds, workers
        self._saved = time.monotonic()
        self._company = company()
        self._steps = PrivateSteps(
            trainer.engine, trainer.optimizer, lambda piece: unit_losses(trainer, piece), self._rate
        )

    def run(self, observer: Observer) -> None:
        """Take the steps.

        Raises:
            RunInterrupted: the observer asked to stop; a checkpoint holds the last step.
            RunFailed: a full disk, an unreadable sample ...; a checkpoint was written if that was possible.
            PrivacyViolation: the journal counts steps that this run doesn't, or is gone or damaged.
        """
        going_on = f"go on with: {self.folder.resume_command()}"
        steps = self.trainer.mechanism.steps
        kept = self._company.first(self._open, "opening the run's files")
        taken = self._steps.take(
            self._batches(), lambda: self._company.first(partial(self._charge, kept), "charging a step")
        )
        try:
            for step in itertools.islice(taken, self.last - self.ledger.steps):
                stop = self._company.any(partial(self._after, step, kept, observer), "what follows a step")
                if stop:
                    self._company.first(self.save, "the checkpoint")
                    raise RunInterrupted(f"stopped after step {step} of {steps}; {going_on}{self._told_cost()}")
        except RunInterrupted:
            raise
        except Exception as error:
            if kept is not None and kept.journal.in_place():  # or else the checkpoint is another's
                self._rescue(kept.journal.charged)
            if isinstance(error, RunFailed):
                raise
            if is_shortage(error):
                fewer = max(1, self.config.microbatch // 2)
                raise RunFailed(
                    f"step {self._steps.step} failed: memory can't hold {self.config.microbatch} records at once "
                    f"({' '.join(str(error).split())[:200]}). Fewer change memory and speed alone: {self.folder.resume_command()} "
                    f"--microbatch {fewer}"
                ) from error
            kind = "" if isinstance(error, (GroupClipError, ValueError)) else f"{type(error).__name__}: "
            raise RunFailed(f"step {self._steps.step} failed: {kind}{error}\nPut that right, then {going_on}") from error
        finally:
            taken.close()
            if kept is not None:
                kept.close()

    def _told_cost(self) -> str:
        last = self.ledger.last_step
        return "" if last == self.config.steps else f"\nThen {ended(self.config, last)}"

    def _open(self) -> _Kept:
        with said_plainly("opening the run's files", f"go on with: {self.folder.resume_command()}"):
            self._refuse_overtaken()
            self.ledger.tell_beginnings(partial(_refuse_anew, self.ledger.begun_next))
            return _Kept(
                Journal(self.folder.journal, self.ledger.steps, self.ledger.begun_next),
                Lines(self.folder.metrics, mode=PUBLIC, durable=False),
            )

    def _charge(self, kept: _Kept | None) -> None:
        """Charge a step, in the process that keeps the journal. All wait for it."""
        assert kept is not None
        with said_plainly("charging a step", f"go on with: {self.folder.resume_command()}"):
            kept.journal.charge()

    def _after(self, step: int, kept: _Kept | None, observer: Observer) -> bool:
        """Tell and keep what a step has come to; return whether this process is asked to stop."""
        self.evaluation = None
        if self.trainer.average is not None:
            self.trainer.average.update()
        self.progress = replace(self.progress, updates=self.progress.updates + 1)
        if kept is not None:
            row = self._row(step)
            with said_plainly("writing metrics.jsonl", f"go on with: {self.folder.resume_command()}"):
                kept.metrics.append(row_text(row))
            observer.step(row)
        self.trainer.optimizer.zero_grad()
        stop = observer.stop_requested() and step < self.last
        if kept is not None and not stop and time.monotonic() - self._saved >= self._seconds:
            self.save()
        return stop

    def _refuse_overtaken(self) -> None:
        """Raise PrivacyViolation if another process charged steps since this run read the journal."""
        charged = min(read_journal(self.folder.journal), self.trainer.mechanism.steps)
        if charged > self.ledger.steps:
            raise PrivacyViolation(
                f"{self.folder.journal} counts {charged} steps, this run {self.ledger.steps}: the run went on elsewhere "
                f"meanwhile, and those steps would be missing from epsilon. Go on with: {self.folder.resume_command()}"
            )

    def _batches(self) -> LogicalBatches:
        """Draw the batches of the steps that are left. Truncated batches are filled up to one size, which the plan is made for."""
        mechanism = self.trainer.mechanism
        padded = mechanism.max_batch_size is not None and mechanism.unit == "sample"
        microbatch = self.config.microbatch
        if padded:
            microbatch = min(microbatch, mechanism.max_batch_size or microbatch)
        records = self.task.train
        decoding = isinstance(records, ImageFiles) and records.held is None
        return logical_batches(
            records,
            mechanism,
            microbatch,
            users=self.task.owners,
            padded=padded,
            start=self.ledger.steps,
            num_workers=self._workers if decoding else 0,
        )

    def save(self) -> None:
        """Write a checkpoint of the steps taken so far. RunFailed if the disk doesn't take it."""
        with said_plainly("writing the checkpoint", f"go on with: {self.folder.resume_command()}"):
            self.write_checkpoint()

    def write_checkpoint(self) -> None:
        """Write a checkpoint as :meth:`save` does, but let an OSError stay one."""
        checkpoint.save(
            self.folder.checkpoint,
            self.config.to_dict(),
            self.trainer.model,
            self.trainer.optimizer,
            self.trainer.engine.state_dict(),
            self.progress,
            self.trainer.average,
        )
        self._saved = time.monotonic()

    def _rate(self, step: int) -> float:
        return learning_rate(self.config, step, self.config.steps)

    def _row(self, step: int) -> dict[str, Any]:
        row: dict[str, Any] = {
            "step": step,
            "updates": self.progress.updates,
            "epsilon": self._curve.at(step),
            "learning_rate": self._rate(step),
            "noisy_gradient_norm": noisy_norms(self.trainer.engine),
        }
        every = self.config.eval_every
        if every and (step % every == 0 or step == self.last):
            self.evaluation = evaluate(self.trainer.released, self.task, self.trainer.device)
            row["test_accuracy"] = self.evaluation.test_accuracy
            if self.evaluation.public_loss is not None and math.isfinite(self.evaluation.public_loss):
                row["public_loss"] = self.evaluation.public_loss
        return row

    def _rescue(self, charged: int) -> None:
        """Keep the steps that were taken before a failure, if the weights are whole and the disk has room.

        They are whole before the update, and where the ledger hasn't counted the step yet: a budget refused it.
        """
        if self._steps.doing != "updating" or self.ledger.steps < charged:
            try:
                self.save()
            except RunFailed:
                return  # the last checkpoint stands; the message about the first failure says how to go on
