"""What is published: ``release/``, made in a folder of its own and then renamed, and ``report.html``."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..statement.html import RunReport, html_report, told_lost
from ..statement.names import plain_name, with_commas
from ..statement.record import PrivacyRecord, model_card
from ..statement.told import Told
from ..statement.words import paragraphs
from ..tasks import Task
from .build import Trainer
from .checkpoint import Progress, plain_tensor
from .config import RunConfig
from .environment import environment
from .evaluate import Evaluation
from .files import sync_folder, write_atomically
from .guessing import findings, told_majority
from .values import PATH_OPTIONS


def write_release(
    release: Path,
    config: RunConfig,
    task: Task,
    trainer: Trainer,
    progress: Progress,
    evaluation: Evaluation | None,
    record: PrivacyRecord,
) -> None:
    """Write weights (safetensors), ``privacy.json``, the model card and the model's settings. ``record``: :func:`record_of`.

    Nothing here names a path, a seed or a key, or a statistic of the records that has no noise.

    Raises OSError; then there is no release, or the one that was there before.
    """
    from safetensors.torch import save as serialise

    made = release.with_name(f".release.{os.getpid()}.tmp")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    try:
        weights = {name: plain_tensor(value) for name, value in trainer.released.state_dict().items()}
        write_atomically(made / "model.safetensors", serialise(weights, {"format": "pt"}))
        write_atomically(made / "privacy.json", as_json(record.to_dict()))
        write_atomically(made / "config.json", as_json({**model_settings(config, task), **_measured(task, evaluation)}))
        write_atomically(made / "README.md", _card(config, task, record, progress, evaluation))
        if release.exists():
            shutil.rmtree(release)
        os.replace(made, release)
        sync_folder(release.parent)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def record_of(config: RunConfig, task: Task, trainer: Trainer) -> PrivacyRecord:
    """Return the record of a run, which says which weights are released."""
    record = trainer.engine.record(delta=config.delta)
    record = replace(record, told=told_of(config, task, record.steps))
    return record if trainer.average is None else replace(record, weights=trainer.average.told)


def told_of(config: RunConfig, task: Task, steps: int) -> Told:
    """Return what a run knows of what was read of the data, and what its settings tell."""
    reading = f"No: {task.description['preprocessing']}." if "preprocessing" in task.description else ""
    hashed = "No: words are hashed into buckets that were fixed beforehand."
    early = "" if steps == config.steps else " Interruptions cost rounds of correlated noise, so the run ended before the last."
    known = {
        "vocabulary": "No: there is none." if task.vocabulary is None else hashed,
        "constants": reading,
        "early_stopping": (
            "No: the number of steps was fixed beforehand. Evaluations on held-out records, at steps fixed beforehand, changed "
            f"nothing.{early}"
        ),
    }
    return Told.from_dict({**known, **config.told})


def _card(
    config: RunConfig, task: Task, record: PrivacyRecord, progress: Progress, evaluation: Evaluation | None
) -> str:
    """Write the model card. Everything said of the records is their task's public description."""
    sections = {"Data": "\n".join(f"- {plain_name(key)}: {value}" for key, value in with_commas(task.description).items())}
    origin = "trained from random weights"
    if progress.pretraining is not None:
        origin = "trained after public pretraining on drawn letters"
        sections["Public pretraining"] = "\n".join(f"- {plain_name(k)}: {v}" for k, v in with_commas(progress.pretraining).items())
    if config.augment != "none":
        sections["Data"] += f"\n- augmentation: {config.augment}, {config.views} random views of an image in each step"
    if progress.lost:
        sections["Interruptions"] = (
            f"{told_lost(progress.lost)}. The weights took {progress.updates:,} updates of the {record.steps:,} steps that are "
            "counted."
        )
    if evaluation is not None:
        sections["Evaluation"] = (
            f"Accuracy {evaluation.test_accuracy:.1%} on {len(task.test):,} held-out records, which the guarantee doesn't "
            f"cover: they are treated as public. For comparison, {told_majority(evaluation)}. Nothing was measured on the "
            "training records."
        )
        sections["Evaluation"] += "".join(f" {finding}" for finding in findings(config, task, evaluation))
    sections["Use"] = USE
    return model_card(
        record,
        title=f"{config.model} on {task.name}",
        introduction=f"A classifier with {task.num_classes} classes, {origin}, with differential privacy.",
        tags=[f"{task.kind}-classification"],
        intended_use=_INTENDED.format(kind="images" if task.kind == "image" else "texts", classes=task.num_classes),
        sections=sections,
    )


_INTENDED = (
    "To sort {kind} that were prepared as under Data into {classes} classes. To fill in by whoever publishes the model: for what "
    "and whom it is meant, and for what it isn't. ______________________________"
)
USE = """```python
import json
from groupclip.models import build_model
from safetensors.torch import load_file

facts = json.load(open("config.json"))
model = build_model(
    facts["model"], input_shape=tuple(facts["input_shape"]), num_classes=len(facts["classes"]),
    vocabulary=facts["vocabulary"], **facts["model_options"],
)
model.load_state_dict(load_file("model.safetensors"))
```"""


def write_report(
    path: Path,
    config: RunConfig,
    task: Task,
    trainer: Trainer,
    progress: Progress,
    evaluation: Evaluation | None,
    rows: Sequence[Mapping[str, Any]],
    record: PrivacyRecord,
) -> None:
    """Write ``report.html``; ``rows``: of ``metrics.jsonl``; ``record``: :func:`record_of`. Raises OSError; an old report stays."""
    report = RunReport(
        title=f"{config.model} on {task.name}, trained with differential privacy",
        statement=paragraphs(record),
        epsilon=trainer.engine.epsilon(delta=config.delta),
        delta=config.delta,
        planned_epsilon=config.epsilon,
        steps=record.steps,
        updates=progress.updates,
        test_accuracy=None if evaluation is None else evaluation.test_accuracy,
        chance=1 / task.num_classes if evaluation is None else evaluation.majority_share,
        findings=findings(config, task, evaluation),
        partition=trainer.engine.partition,
        thresholds=trainer.engine.thresholds,
        noise_multiplier=trainer.noise_multiplier,
        noise_stds=trainer.engine.noise_stds,
        expected_batch_size=config.batch_size,
        rows=rows,
        lost=progress.lost,
        data=with_commas(task.description),
        pretraining=with_commas(progress.pretraining or {}),
        settings=public_settings(config),
        environment=environment(trainer.device),
    )
    write_atomically(path, html_report(report))


def public_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings without paths, which tell about a person's machine."""
    settings = {name: value for name, value in config.to_dict().items() if name not in ("data", "budget")}
    options = settings.pop("task_options", {})
    kept = {name: value for name, value in options.items() if name not in PATH_OPTIONS}
    return {**settings, **({"task_options": kept} if kept else {})}


def model_settings(config: RunConfig, task: Task) -> dict[str, Any]:
    """Return what builds the model again, and what its inputs and outputs mean."""
    return {
        "model": config.model,
        "model_options": dict(config.model_options),
        "input_shape": list(task.input_shape),
        "classes": list(task.classes),
        "vocabulary": task.vocabulary,
        "preprocessing": task.description.get("preprocessing"),
    }


def _measured(task: Task, evaluation: Evaluation | None) -> dict[str, Any]:
    """Return what the card tells of held-out records, for programs; nothing if the run never evaluates."""
    if evaluation is None:
        return {}
    return {
        "evaluation": {
            "accuracy": evaluation.test_accuracy,
            "commonest_class": evaluation.majority_share,
            "held_out_records": len(task.test),
        }
    }


def as_json(value: Any) -> str:
    """Write a file of JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
