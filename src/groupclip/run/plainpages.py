"""What a run without privacy writes: weights, record, card and report, each with the words NOT PRIVATE in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from torch import nn

from ..statement import html as report
from ..statement.record import software
from ..tasks import Task
from .checkpoint import plain_tensor
from .config import RunConfig
from .environment import environment
from .evaluate import Evaluation
from .files import write_atomically
from .folder import RunFolder
from .guessing import findings, told_majority
from .release import USE, as_json, model_settings, public_settings

NOT_PRIVATE = (
    "NOT PRIVATE. This is a baseline for comparison: it was trained without clipping and without noise, and no epsilon is "
    "claimed for it. Treat the weights as if they contained the training data. No figure of this run is covered by a guarantee, "
    "its accuracy included."
)


def write_results(
    folder: RunFolder,
    config: RunConfig,
    task: Task,
    model: nn.Module,
    pretraining: Mapping[str, Any],
    evaluation: Evaluation | None,
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Write the folder of the weights and ``report.html``. Raises OSError."""
    from safetensors.torch import save as serialise

    made = folder.not_private
    made.mkdir()
    weights = {name: plain_tensor(value) for name, value in model.state_dict().items()}
    write_atomically(made / "model.safetensors", serialise(weights, {"format": "pt", "privacy": "NOT PRIVATE"}))
    write_atomically(made / "privacy.json", as_json(record_of(config)))
    write_atomically(made / "config.json", as_json({**model_settings(config, task), "private": False}))
    write_atomically(made / "README.md", _card(config, task, pretraining, evaluation))
    write_atomically(folder.report, _report(config, task, model, pretraining, evaluation, rows))


def record_of(config: RunConfig) -> dict[str, Any]:
    """Return ``privacy.json``: the keys that every record has, and no claim."""
    return {
        "private": False,
        "obstacles": ["it was trained without clipping and without noise, as a baseline (--no-privacy)"],
        "statement": NOT_PRIVATE,
        "epsilon": None,
        "delta": None,
        "steps_taken": config.steps,
        "software": software(),
    }


def _title(config: RunConfig, task: Task) -> str:
    return f"NOT PRIVATE: {config.model} on {task.name}, a baseline without privacy"


def _measured(config: RunConfig, task: Task, evaluation: Evaluation | None) -> list[str]:
    if evaluation is None:
        return []
    return [
        f"Accuracy {evaluation.test_accuracy:.1%} on {len(task.test):,} held-out records; for comparison, "
        f"{told_majority(evaluation)}. The model that was measured is not private.",
        *findings(config, task, evaluation),
    ]


def _card(
    config: RunConfig, task: Task, pretraining: Mapping[str, Any], evaluation: Evaluation | None
) -> str:
    listed = lambda facts: "\n".join(f"- {name}: {value}" for name, value in facts.items())  # noqa: E731
    parts = [
        f"---\nlibrary_name: pytorch\ntags:\n- not-private\n- groupclip\n- {task.kind}-classification\n---",
        f"# {_title(config, task)}",
        f"**{NOT_PRIVATE}**",
        f"## Data\n\n{listed(task.description)}",
        *([f"## Public pretraining\n\n{listed(pretraining)}"] if pretraining else []),
        *(["## Evaluation", *_measured(config, task, evaluation)] if evaluation is not None else []),
        f"## Use\n\n{USE}",
    ]
    return "\n\n".join(parts) + "\n"


def _report(
    config: RunConfig, task: Task, model: nn.Module, pretraining: Mapping[str, Any], evaluation: Evaluation | None,
    rows: Sequence[Mapping[str, Any]],
) -> str:  # fmt: skip
    measured = [(str(row["step"]), row["test_accuracy"]) for row in rows if "test_accuracy" in row]
    parts = [
        f"<h1>{escape(_title(config, task))}</h1>",
        f"<p><b>{escape(NOT_PRIVATE)}</b></p>",
        *(f"<p>{escape(words)}</p>" for words in _measured(config, task, evaluation)),
        "<h2>Accuracy on held-out records, by step</h2>",
        report.table({step: f"{accuracy:.1%}" for step, accuracy in measured}),
        "<h2>Data</h2>",
        report.table(task.description),
        *(["<h2>Public pretraining</h2>", report.table(pretraining)] if pretraining else []),
        "<h2>Settings</h2>",
        report.table(public_settings(config)),
        "<h2>Made with</h2>",
        report.table(environment(next(model.parameters()).device)),
    ]
    return report.page(_title(config, task), "\n".join(parts))
