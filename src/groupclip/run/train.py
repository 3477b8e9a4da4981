"""The main job: :func:`start` gives a :class:`Run` to train (and so does :func:`groupclip.run.resume`)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from ..distributed.agreement import digest
from ..statement.drawn import DrawnBudget
from ..tasks import Task
from ..tasks.telling import Told
from .build import Trainer, build
from .checkpoint import Progress
from .company import company
from .config import RunConfig, checked_request, to_yaml
from .drawing import give_back
from .errors import ConfigError, RunFailed, RunInterrupted
from .evaluate import Evaluation, evaluate
from .files import said_plainly, write_atomically
from .folder import RunFolder, new_folder, refuse_used
from .guessing import findings
from .journal import Journal
from .loading import loaded
from .loop import Loop, ended
from .metrics import read_rows
from .observer import Beginning, Nobody, Observer
from .pretraining import check_pretrainable, pretrained
from .release import record_of, write_release, write_report
from .resolve import advised_reading, refuse_lax_delta, resolve
from .shortage import OF_MODELS, enough_memory

CHECKPOINT_SECONDS = 30.0
BEGINNING = "the beginning of the run"
HEADING = "Every setting of this run. To do it again: groupclip train --config run.yaml --out OTHER"


@dataclass(frozen=True)
class Outcome:
    """Holds what a finished run gives.

    test_accuracy: share of held-out records that are right; None if the run never evaluates, as is
    majority_share: what naming their commonest class for all of them has.
    budget: what the budget holds that the run draws on; None without one.
    findings: sentences for a person about a run that learnt little or nothing, or ended early.
    """

    out: Path
    release: Path
    report: Path
    steps: int
    updates: int
    epsilon: float
    delta: float
    noise_multiplier: float
    test_accuracy: float | None
    majority_share: float | None
    findings: tuple[str, ...]
    budget: DrawnBudget | None = None


def start(
    request: Mapping[str, Any],
    out: Path,
    *,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    workers: int = 0,
    told: Told | None = None,
) -> Run:
    """Prepare a new run and its folder.

    Args:
        request: settings by the names of ``RunConfig`` (or ``epochs``); what is left out comes from the
            task's recipe.
        out: a folder that doesn't exist or is empty.
        checkpoint_seconds: most seconds of work that a crash can lose.
        workers: threads that decode images here, and processes that do so in training if memory can't hold them all. Changes no
            result, so it is no setting of the run.
        told: of how many images are decoded, and how many there are.

    Of several processes in torch's process group all call it, with the same settings. They train together, and the first one
    keeps the folder.

    Raises:
        ValueError, TypeError, FileNotFoundError: a setting that can't be; then nothing was written.
        RunFailed: the disk is full.
    """
    checked = checked_request(request)
    if checked.get("no_privacy"):
        raise ConfigError("no_privacy is given: such a run is begun by groupclip.run.start_plain")
    if "task" not in checked:
        raise ConfigError("no task is given: name one, e.g. --task digits or --task imagefolder:PATH")
    together = company()
    together.first(lambda: refuse_used(out), BEGINNING)

    def read() -> tuple[Task, RunConfig]:
        asked = advised_reading(checked)
        task = loaded(asked, workers, told)
        config = resolve(asked, task)
        refuse_lax_delta(config, task)
        return task, config

    task, config = together.alike(read, lambda found: {"the settings": digest(found[1].to_dict())}, BEGINNING)
    with enough_memory("the model and its optimizer", *OF_MODELS):
        trainer = build(config, task)
    try:
        together.all(lambda: check_pretrainable(config, trainer.model), BEGINNING)
        folder = together.first(lambda: new_folder(out), BEGINNING) or RunFolder(out, held=False)
    except BaseException:
        give_back(trainer.reservation)
        raise

    def begin(run: Run) -> None:
        with said_plainly("beginning the run", "start it again"):
            write_atomically(folder.config, to_yaml(config, HEADING))
            Journal(folder.journal, charged=0).close()  # before there is a checkpoint to go on from
            run.loop.write_checkpoint()

    try:
        run = together.all(
            lambda: Run(config, task, trainer, folder, Progress(), checkpoint_seconds, workers), BEGINNING
        )
        together.first(lambda: begin(run), BEGINNING)
    except BaseException:
        if together.keeps:
            folder.config.unlink(missing_ok=True)
            shutil.rmtree(folder.resume, ignore_errors=True)
        folder.close()
        give_back(trainer.reservation)  # last: it may be the disk that failed
        raise
    return run


class Run:
    """A prepared run. Holds the lock on its folder until :meth:`train` returns or raises.

    Of several processes the first one holds it and writes; an outcome in the others has no evaluation.
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
        self.config, self.task, self.trainer, self.folder = config, task, trainer, folder
        self._checkpoint_seconds, self._workers = checkpoint_seconds, workers
        self._begun = False
        self.loop = Loop(config, task, trainer, folder, progress, checkpoint_seconds, workers)

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""
        return self.trainer.model

    def train(self, observer: Observer | None = None, *, keep_resume: bool = False) -> Outcome:
        """Take the steps that are left and write the results. Once: :func:`groupclip.run.resume` goes on with what was stopped.

        Raises:
            RunFailed: called before, or the folder was given up; and all that :meth:`groupclip.run.loop.Loop.run` raises.
        """
        if self._begun or self.folder.closed:
            raise RunFailed(
                f"this Run was trained already, is being trained, or gave up its folder {self.folder.root}: the run may have "
                "gone on since, and what this object counts may be too low. Go on with "
                f"groupclip.run.resume({str(self.folder.root)!r}).train(), or {self.folder.resume_command()}"
            )
        self._begun = True
        watcher = Nobody() if observer is None else observer
        try:
            if self.config.pretrain_steps and self.loop.progress.pretraining is None:
                self._pretrain(watcher)
            lost = sum(last - first + 1 for first, last in self.loop.progress.lost)
            sigma = self.trainer.noise_multiplier
            plan = self.trainer.mechanism
            watcher.begin(
                Beginning(
                    self.config, self.trainer.groups, sigma, self.loop.ledger.steps, lost, self.task.unit, plan.band_count,
                    plan.rounds(), self._ends,
                )
            )  # fmt: skip
            self.loop.run(watcher)
            return self._publish(company().first(self._evaluated_and_saved, "the results"), keep_resume)
        finally:
            self.folder.close()

    @property
    def _ends(self) -> str:
        return "" if self.loop.last == self.config.steps else ended(self.config, self.loop.last)

    def _pretrain(self, watcher: Observer) -> None:
        """Pretrain before the first private step; an interruption here loses the pretraining and spends no privacy."""
        steps = self.config.pretrain_steps

        def tell(step: int) -> None:
            watcher.pretraining(step, steps)
            if watcher.stop_requested():
                raise RunInterrupted(
                    f"stopped in the public pretraining, which will begin again; go on with: {self.folder.resume_command()}"
                )

        self.trainer, facts = pretrained(self.config, self.task, self.trainer, tell)
        progress = replace(self.loop.progress, pretraining=facts)
        settled = (self._checkpoint_seconds, self._workers)
        self.loop = Loop(self.config, self.task, self.trainer, self.folder, progress, *settled)
        company().first(self.loop.save, "the public pretraining")

    def _final_evaluation(self) -> Evaluation | None:
        if not self.config.eval_every:
            return None
        return self.loop.evaluation or evaluate(self.trainer.released, self.task, self.trainer.device)

    def _evaluated_and_saved(self) -> Evaluation | None:
        evaluation = self._final_evaluation()
        self.loop.save()
        return evaluation

    def _publish(self, evaluation: Evaluation | None, keep_resume: bool) -> Outcome:
        trainer, folder, progress = self.trainer, self.folder, self.loop.progress
        epsilon = trainer.engine.epsilon(delta=self.config.delta)

        def write() -> DrawnBudget | None:
            with said_plainly("writing the results", f"go on with: {folder.resume_command()}"):
                record = record_of(self.config, self.task, trainer)  # once: others may draw on the budget meanwhile
                write_release(folder.release, self.config, self.task, trainer, progress, evaluation, record)
                rows = read_rows(folder.metrics)
                write_report(folder.report, self.config, self.task, trainer, progress, evaluation, rows, record)
                give_back(trainer.reservation)
                if not keep_resume:
                    folder.forget_resume()
                return record.budget

        held = company().first(write, "the results")
        return Outcome(
            out=folder.root,
            release=folder.release,
            report=folder.report,
            steps=self.loop.ledger.steps,
            updates=progress.updates,
            epsilon=epsilon,
            delta=self.config.delta,
            noise_multiplier=trainer.noise_multiplier,
            test_accuracy=None if evaluation is None else evaluation.test_accuracy,
            majority_share=None if evaluation is None else evaluation.majority_share,
            findings=(*findings(self.config, self.task, evaluation), *([self._ends] if self._ends else [])),
            budget=held,
        )
