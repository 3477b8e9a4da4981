"""A run without privacy: what the same model reaches on the same records by ordinary training.

It is there to be compared with, and nothing of it is private: no clipping, no noise, no epsilon. So it is marked NOT PRIVATE
wherever it shows: on the terminal, in its folder, its settings, its record, its card and its report. It has no ``release/``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..models import pretrain_on_letters
from ..partition.choose import partition
from ..tasks import Task
from ..tasks.telling import Told
from .build import device_of, model_of
from .company import company
from .config import RunConfig, checked_request, to_yaml
from .errors import ConfigError, RunFailed, RunInterrupted
from .evaluate import Evaluation, evaluate
from .files import PUBLIC, Lines, said_plainly, write_atomically
from .folder import RunFolder, new_folder, refuse_used
from .guessing import findings
from .loading import loaded
from .losses import views_of
from .metrics import row_text
from .observer import Beginning, Nobody, Observer
from .optimizers import learning_rate, make_optimizer, set_rate
from .plainpages import NOT_PRIVATE, write_results
from .pretraining import check_pretrainable
from .resolve import advised_reading, resolve
from .shortage import OF_MODELS, enough_memory

_HEADING = (
    "NOT PRIVATE: a baseline without clipping and noise.\n"
    "Every setting of this run. To do it again: groupclip train --config run.yaml --out OTHER"
)


@dataclass(frozen=True)
class PlainOutcome:
    """Holds what a finished run without privacy gives; ``weights``: the folder that other runs call their release."""

    out: Path
    weights: Path
    report: Path
    steps: int
    test_accuracy: float | None
    majority_share: float | None
    findings: tuple[str, ...]
    private: bool = False


def start_plain(
    request: Mapping[str, Any], out: Path, *, workers: int = 0, told: Told | None = None
) -> PlainRun:
    """Prepare a run without privacy in a new folder; ``request`` has ``no_privacy``. Arguments and errors as of ``start``."""
    checked = checked_request({**request, "no_privacy": True})
    if "task" not in checked:
        raise ConfigError("no task is given: name one, e.g. --task digits or --task imagefolder:PATH")
    if company().size > 1:
        raise ConfigError("no_privacy trains a baseline on one process, and this is one of several: start it without torchrun")
    refuse_used(out)
    checked = advised_reading(checked)
    task = loaded(checked, workers, told)
    config = resolve(checked, task)
    device = device_of(config.device)
    with enough_memory("the model", *OF_MODELS):
        model = model_of(config, task).to(device)
    check_pretrainable(config, model)
    folder = new_folder(out)
    try:
        with said_plainly("beginning the run", "start it again"):
            write_atomically(folder.mark, NOT_PRIVATE + "\n")
            write_atomically(folder.config, to_yaml(config, _HEADING))
    except BaseException:
        folder.config.unlink(missing_ok=True)
        folder.mark.unlink(missing_ok=True)
        folder.forget_resume()
        folder.close()
        raise
    return PlainRun(config, task, model, device, folder)


class PlainRun:
    """A prepared run without privacy. It can't be resumed: what was stopped is started again."""

    def __init__(self, config: RunConfig, task: Task, model: nn.Module, device: torch.device, folder: RunFolder) -> None:
        self.config, self.task, self.model, self.device, self.folder = config, task, model, device, folder

    def train(self, observer: Observer | None = None, *, keep_resume: bool = False) -> PlainOutcome:
        """Train and write the results; ``keep_resume`` means nothing here. Once.

        Raises:
            RunFailed: called before, or the disk is full.
            RunInterrupted: the observer asked to stop.
        """
        del keep_resume
        if self.folder.closed:
            raise RunFailed(f"this run without privacy was trained already; start another one beside {self.folder.root}")
        watcher = Nobody() if observer is None else observer
        try:
            pretraining = self._pretrain(watcher)
            groups = partition(self.model, "all-layer")
            watcher.begin(Beginning(self.config, groups, 0.0, 0, 0, "sample"))
            rows, evaluation = self._steps(watcher)
            with said_plainly("writing the results", "start the run again in a new folder"):
                write_results(self.folder, self.config, self.task, self.model, pretraining, evaluation, rows)
            return PlainOutcome(
                out=self.folder.root,
                weights=self.folder.not_private,
                report=self.folder.report,
                steps=self.config.steps,
                test_accuracy=None if evaluation is None else evaluation.test_accuracy,
                majority_share=None if evaluation is None else evaluation.majority_share,
                findings=findings(self.config, self.task, evaluation),
            )
        finally:
            self.folder.forget_resume()
            self.folder.close()

    def _pretrain(self, watcher: Observer) -> Mapping[str, Any]:
        steps = self.config.pretrain_steps
        if not steps:
            return {}

        def tell(step: int) -> None:
            watcher.pretraining(step, steps)
            self._stop_if_asked(watcher, "in the public pretraining")

        return pretrain_on_letters(
            self.model, self.task.input_shape, steps=steps, seed=self.config.seed, on_step=tell
        )

    def _steps(self, watcher: Observer) -> tuple[list[dict[str, Any]], Evaluation | None]:
        config, model = self.config, self.model
        optimizer = make_optimizer(config, model)
        rows: list[dict[str, Any]] = []
        evaluation = None
        metrics = Lines(self.folder.metrics, mode=PUBLIC, durable=False)
        model.train()
        try:
            batches = _batches(self.task, config)
            for step in range(1, config.steps + 1):
                rate = learning_rate(config, step, config.steps)
                set_rate(optimizer, rate)
                inputs, labels = next(batches)
                optimizer.zero_grad()
                pieces = zip(inputs.split(config.microbatch), labels.split(config.microbatch), strict=True)
                for x, y in pieces:
                    images = x if config.augment == "none" else views_of(x, config.views, config.augment).flatten(0, 1)
                    targets = y.repeat_interleave(config.views).to(self.device)
                    loss = F.cross_entropy(model(images.to(self.device)), targets, reduction="sum")
                    (loss / (config.views * len(labels))).backward()
                optimizer.step()
                row: dict[str, Any] = {"step": step, "private": False, "learning_rate": rate}
                if config.eval_every and (step % config.eval_every == 0 or step == config.steps):
                    evaluation = evaluate(model, self.task, self.device)
                    row["test_accuracy"] = evaluation.test_accuracy
                rows.append(row)
                with said_plainly("writing metrics.jsonl", "start the run again in a new folder"):
                    metrics.append(row_text(row))
                watcher.step(row)
                if step < config.steps:
                    self._stop_if_asked(watcher, f"after step {step} of {config.steps}")
        finally:
            metrics.close()
        return rows, evaluation

    def _stop_if_asked(self, watcher: Observer, when: str) -> None:
        if watcher.stop_requested():
            raise RunInterrupted(f"stopped {when}; a run without privacy can't go on: start it again in a new folder")


def _batches(task: Task, config: RunConfig) -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled anew for every epoch, without end; the order follows the seed, for there is nothing to hide."""
    generator = torch.Generator().manual_seed(config.seed)
    while True:
        yield from DataLoader(task.train, batch_size=config.batch_size, shuffle=True, generator=generator)
