"""``release/``: what is published. Made in a folder of its own, then renamed: whole, or not there."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from ..tasks import Task
from .build import Trainer
from .checkpoint import plain_tensor
from .config import RunConfig
from .evaluate import Evaluation
from .files import sync_folder, write_atomically


def write_release(
    release: Path, config: RunConfig, task: Task, trainer: Trainer, evaluation: Evaluation | None
) -> None:
    """Write weights (safetensors), ``privacy.json``, the model card and the model's settings.

    Nothing here names a path, a seed or a key, or a statistic of the records that has no noise.

    Raises OSError; then there is no release, or the one that was there before.
    """
    from safetensors.torch import save as serialise

    from ..statement import model_card

    made = release.with_name(f".release.{os.getpid()}.tmp")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    try:
        record = trainer.engine.record(delta=config.delta)
        weights = {name: plain_tensor(value) for name, value in trainer.model.state_dict().items()}
        write_atomically(made / "model.safetensors", serialise(weights, {"format": "pt"}))
        facts = {**record.to_dict(), "plan_hash": trainer.mechanism.plan_hash}
        write_atomically(made / "privacy.json", _json(facts))
        write_atomically(made / "config.json", _json(model_settings(config, task)))
        write_atomically(made / "README.md", model_card(record))
        if release.exists():
            shutil.rmtree(release)
        os.replace(made, release)
        sync_folder(release.parent)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def model_settings(config: RunConfig, task: Task) -> dict[str, Any]:
    """What builds the model again, and what its inputs and outputs mean."""
    return {
        "model": config.model,
        "model_options": dict(config.model_options),
        "input_shape": list(task.input_shape),
        "classes": list(task.classes),
        "vocabulary": task.vocabulary,
        "preprocessing": task.description.get("preprocessing"),
    }


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
