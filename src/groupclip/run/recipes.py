"""Settings that work, by task and model: what a run takes where a person said nothing. Data, not code.

No recipe has an epsilon: how much privacy to spend is the person's decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Defaults of one task; ``RunConfig`` says what they mean."""

    model: str
    clipping: str
    batch_size: int
    epochs: float
    lr: float
    optimizer: str = "adamw"
    schedule: str = "constant"
    momentum: float = 0.0
    weight_decay: float = 0.0
    microbatch: int = 64
    pretrain_steps: int = 0


TUNED: dict[str, Recipe] = {
    "digits": Recipe(
        model="vit-micro",
        clipping="uniform:2",
        batch_size=512,
        epochs=40,
        lr=0.1,
        optimizer="sgd",
        schedule="linear",
        momentum=0.9,
        microbatch=512,
        pretrain_steps=1000,
    ),
}
"""By task: for the recipe's own model alone, with which it was found."""

GENERAL: dict[Literal["image", "text"], Recipe] = {
    "image": Recipe(model="cnn-small", clipping="layer-wise", batch_size=512, epochs=10, lr=3e-3),
    "text": Recipe(model="mlp", clipping="layer-wise", batch_size=512, epochs=10, lr=1e-2),
}
"""By kind of input: for every other task, and for other models."""

EVALUATIONS = 20  # at most that many in a run


def recipe(task: str, kind: Literal["image", "text"], model: str | None) -> Recipe:
    """The defaults for a task and the model that was asked for, if one was."""
    tuned = TUNED.get(task)
    return tuned if tuned is not None and model in (None, tuned.model) else GENERAL[kind]
