"""Going on with a run that was stopped: its settings, plan and data have to be what they were, and no charged step is forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..distributed.agreement import digest
from ..errors import PrivacyViolation
from ..partition.styles import PLANNED
from ..privacy.mechanism import Mechanism
from ..privacy.planned import AUTO
from ..privacy.reservation import Reservation
from ..privacy.stretches import checked_begun, last_step
from ..tasks import Task
from ..tasks.telling import Told
from . import checkpoint
from .build import Trainer, build, plan_of
from .checkpoint import Progress
from .company import company
from .config import RunConfig, checked_request, read_yaml, to_yaml
from .drawing import taken_up
from .errors import ConfigError
from .files import said_plainly, write_atomically
from .folder import RunFolder, existing_folder
from .journal import read_begun, read_journal
from .loading import loaded_again
from .metrics import cut_torn_row, read_rows, steps_told
from .shortage import OF_MODELS, enough_memory
from .train import CHECKPOINT_SECONDS, HEADING, Run

GOING_ON = "the run that goes on"


def resume(
    out: Path,
    request: Mapping[str, Any] | None = None,
    *,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    workers: int = 0,
    told: Told | None = None,
) -> Run:
    """Go on with a run that was stopped, at the ledger where it stood (see :mod:`groupclip.run.journal`).

    Args:
        request: settings that the run must have. Nothing but ``microbatch`` can be changed on the way (there, or in run.yaml),
            which changes memory and speed alone. The other arguments are those of :func:`start`.

    Raises:
        ValueError, TypeError, FileNotFoundError: nothing to go on from, other settings, another process at
            it.
        PrivacyViolation, BudgetExceeded, RunFailed: its state is damaged or was edited.
    """
    together = company()
    folder = together.first(lambda: existing_folder(out), GOING_ON) or RunFolder(out, held=False)
    try:
        found = together.alike(lambda: _read(folder, request or {}, workers, told), _Found.facts, GOING_ON)
        reservation = together.first(lambda: _taken_up(found), GOING_ON)
        # It may know of more, where the folder is an older copy.
        charged = found.charged if reservation is None else sum(reservation.before.values())
        charged = together.told_by_first(charged)
        with enough_memory("the model and its optimizer", *OF_MODELS):
            trainer = build(found.config, found.task, found.mechanism, reservation)
        engine, progress = together.all(lambda: _loaded(folder, found, trainer, charged), GOING_ON)
        with checkpoint.usable(folder.checkpoint):
            trainer.engine.load_state_dict(engine)

        def write() -> None:
            cut_torn_row(folder.metrics)
            if found.config.microbatch != found.written.microbatch:
                with said_plainly("writing run.yaml", f"go on with: {folder.resume_command()}"):
                    write_atomically(folder.config, to_yaml(found.config, HEADING))

        run = together.all(
            lambda: Run(found.config, found.task, trainer, folder, progress, checkpoint_seconds, workers), GOING_ON
        )
        together.first(write, GOING_ON)
    except BaseException:
        folder.close()
        raise
    return run


@dataclass(frozen=True, eq=False)
class _Found:
    """What is read of a run that goes on, before anything is built."""

    saved: checkpoint.Checkpoint
    name: str
    written: RunConfig
    config: RunConfig
    task: Task
    mechanism: Mechanism
    charged: int

    def facts(self) -> dict[str, Any]:
        """Return what several processes must have in common."""
        return {
            "the checkpoint": self.name,
            "the settings": digest(self.config.to_dict()),
            "the charged steps": self.charged,
        }


def _read(folder: RunFolder, request: Mapping[str, Any], workers: int, told: Told | None) -> _Found:
    name, saved = checkpoint.name_of(folder.checkpoint), checkpoint.load(folder.checkpoint)
    written = RunConfig(**checked_request(read_yaml(folder.config)))
    asked = checked_request(request)
    _refuse_changes(folder, saved.config, written, asked)
    task = loaded_again(saved.config, workers, told)
    config = replace(RunConfig(**saved.config), microbatch=asked.get("microbatch", written.microbatch))
    with checkpoint.usable(folder.checkpoint):
        mechanism = Mechanism.from_dict(saved.engine["ledger"]["mechanism"])
        counted = sum(saved.engine["ledger"]["steps"].values())
        begun = checked_begun(saved.engine["ledger"].get("begun", []), counted, mechanism.band_count)
    if task.units != mechanism.dataset_size:
        many = "training samples" if task.unit == "sample" else "users"
        raise ConfigError(
            f"the task has {task.units} {many} now, it had {mechanism.dataset_size} when the run began: "
            "the run can only go on with the same data; put them back, or start another run"
        )
    _refuse_another_plan(config, task, mechanism)
    _refuse_finished(folder, counted, last_step(begun, counted, mechanism.steps, mechanism.band_count))
    rows = read_rows(folder.metrics)  # now, and not when all is done
    shown = steps_told(folder.metrics, rows, mechanism.steps)
    charged = min(max(counted, read_journal(folder.journal), shown), mechanism.steps)
    return _Found(saved, name, written, config, task, mechanism, charged)


def _taken_up(found: _Found) -> Reservation | None:
    return taken_up(found.config, found.mechanism, found.saved.engine["ledger"].get("budget"), found.charged)


def _loaded(folder: RunFolder, found: _Found, trainer: Trainer, charged: int) -> tuple[dict[str, Any], Progress]:
    """Put what was saved into what was built; return the engine's state and the progress, with all charged steps."""
    with checkpoint.usable(folder.checkpoint):
        trainer.model.load_state_dict(found.saved.weights)
        trainer.optimizer.load_state_dict(found.saved.optimizer)
        if trainer.average is not None:
            trainer.average.load_state_dict(found.saved.average)
        told, begun = read_journal(folder.journal), read_begun(folder.journal)
        return checkpoint.charged_to(found.saved, charged, begun=begun, told=told)


def _refuse_changes(
    folder: RunFolder, saved: Mapping[str, Any], written: RunConfig, asked: Mapping[str, Any]
) -> None:
    """Raise ConfigError if run.yaml was edited, or if a setting is asked for that the run doesn't have."""
    found = written.to_dict()
    planned = isinstance(written.clipping, str) and written.clipping.startswith(PLANNED)
    free = () if planned else ("microbatch",)  # for which the groups were planned
    for key in sorted({*saved, *found} - {*free}):
        if saved.get(key) != found.get(key):
            raise ConfigError(
                f"{folder.config} was changed since the run began: {key} is {found.get(key)!r}, it was "
                f"{saved.get(key)!r}. "
                "A run can't change on its way, its noise is calibrated for the whole: undo that, or start "
                "another run"
            )
    for key, value in asked.items():
        if key not in free and saved.get(key) != value:
            raise ConfigError(
                f"{key}={value!r} differs from the run to be resumed, which has {saved.get(key)!r}: leave "
                "the setting out, or start another run"
            )


def _refuse_another_plan(config: RunConfig, task: Task, mechanism: Mechanism) -> None:
    """Raise PrivacyViolation unless the saved mechanism is the settings', with noise that was calibrated for their epsilon."""
    spent = mechanism.spent(delta=config.delta, accountant=config.accountant).epsilon
    plan = plan_of(config, task)
    if plan.bands == AUTO:
        plan = replace(plan, bands=mechanism.bands)
    same = replace(mechanism, noise_multiplier=None) == plan
    if not same or not 0.98 * config.epsilon <= spent <= 1.0001 * config.epsilon:
        raise PrivacyViolation(
            f"the checkpoint's plan ({mechanism}) isn't the one that its settings give, epsilon {config.epsilon:g} at delta "
            f"{config.delta:g}: it was edited, and the steps that were taken had other noise. Restore it, or start again"
        )


def _refuse_finished(folder: RunFolder, counted: int, last: int) -> None:
    """Raise ConfigError if there are results of the whole plan beside an older checkpoint, which would overwrite them."""
    if (folder.release / "privacy.json").is_file() and counted < last:
        raise ConfigError(
            f"the run in {folder.root} is finished, its release is in {folder.release}, and {folder.resume} is an older copy, "
            f"of step {counted}: going on from it would put fewer updates in place of that release. Delete {folder.resume}"
        )
