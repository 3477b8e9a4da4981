"""Whether a model learnt more than which class is the commonest, and what to change if it didn't.

The share of the commonest class is that of the held-out records, as the accuracy beside it: both are treated as public. That
of the training records would be a figure of theirs without noise, and is never formed.
"""

from __future__ import annotations

import math

from ..tasks import Task
from .config import RunConfig
from .evaluate import Evaluation
from .recipes import recipe

_ERRORS = 2.0  # standard errors of a share: what chance alone reaches once in 44 times
_ADVISED = ("clip", "thresholds", "sampling", "optimizer", "lr", "schedule", "momentum")


def near_guessing(accuracy: float, majority: float, count: int) -> bool:
    """Return whether ``accuracy`` on ``count`` records is less than two standard errors above ``majority``."""
    return accuracy < majority + _ERRORS * math.sqrt(majority * (1 - majority) / count)


def told_majority(evaluation: Evaluation) -> str:
    """Return what to hold the accuracy against, in words."""
    return f"naming the commonest class of the held-out records for all of them has {evaluation.majority_share:.1%}"


def findings(config: RunConfig, task: Task, evaluation: Evaluation | None) -> tuple[str, ...]:
    """Return sentences about a run that learnt little or nothing; none about another."""
    if evaluation is None or not near_guessing(
        evaluation.test_accuracy, evaluation.majority_share, len(task.test)
    ):
        return ()
    return (
        f"Little or nothing was learnt: {evaluation.test_accuracy:.1%} of the held-out records are right, and "
        f"{told_majority(evaluation)}. What may help: {'; '.join(_hints(config, task))}.",
    )


def _hints(config: RunConfig, task: Task) -> list[str]:
    """Return what to change, the most promising first."""
    if config.no_privacy:
        return ["more --epochs, another --lr or another --model: without noise, they or the data are what holds it back"]
    hints = []
    if task.kind == "text" and config.model != "linear":
        hints.append("--model linear, which needs far fewer records under noise than a model with hidden layers")
    if task.kind == "text" and task.vocabulary is not None:
        hints.append("--task-option encoder=minilm, features of a pretrained encoder in place of hashed words")
    if task.kind == "image" and config.pretrain_steps == 0 and config.model not in ("linear", "mlp"):
        hints.append("--pretrain-steps 1000, which is public and spends no privacy")
    advised = recipe(task.name, task.kind, config.model)
    others = [name for name in _ADVISED if getattr(config, name) != getattr(advised, name)]
    if others:
        hints.append(f"the recipe's own {', '.join(others)}, by leaving them out")
    if task.kind == "image" and config.clipping != "all-layer":
        hints.append("--clipping all-layer, the least noise that groups can have")
    many = "samples" if task.unit == "sample" else "users"
    return [*hints, f"more records than {task.units:,} {many}, which share the noise of a step", "a larger --epsilon"]
