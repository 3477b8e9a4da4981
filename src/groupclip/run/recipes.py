"""Settings that work, by task and model: what a run takes where a person said nothing. Data, not code.

No recipe has an epsilon: how much privacy to spend is the person's decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Defaults of one task; ``RunConfig`` says what they mean.

    batch_size: where batches are sampled; with ``sampling="full-batch"`` a batch is the whole data set.
    task_options: how records are read for the model, unless the person says it.
    """

    model: str
    clipping: str
    batch_size: int
    epochs: float
    lr: float
    clip: str = "automatic"
    thresholds: float = 1.0
    sampling: str = "poisson"
    optimizer: str = "adamw"
    schedule: str = "constant"
    momentum: float = 0.0
    weight_decay: float = 0.0
    microbatch: int = 64
    pretrain_steps: int = 0
    task_options: Mapping[str, Any] = field(default_factory=dict)


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
    "text": Recipe(
        model="linear",
        clipping="all-layer",
        clip="abadi",
        thresholds=0.3,
        sampling="full-batch",
        batch_size=512,
        epochs=60,
        lr=200.0,
        optimizer="sgd",
        microbatch=1024,
        task_options={"max_length": 128, "prefix": 4},
    ),
}
"""By kind of input: for every other task."""

TEXT_NETWORK = Recipe(model="mlp", clipping="layer-wise", batch_size=512, epochs=10, lr=1e-2)
"""For text and a model with hidden layers: it needs far more records than a linear one to learn anything under noise."""

FEATURES = Recipe(
    model="linear",
    clipping="all-layer",
    batch_size=7500,
    epochs=25,
    lr=2.0,
    optimizer="sgd",
    schedule="linear",
    momentum=0.9,
    microbatch=1024,
)
"""For a linear model on features of images, as ``groupclip advise --start linear`` gives it for 60,000 of them at epsilon 3."""

PLAIN = Recipe(model="", clipping="none", batch_size=64, epochs=20, lr=1e-3, schedule="linear")
PLAIN_LINEAR = Recipe(model="linear", clipping="none", batch_size=64, epochs=20, lr=1e-2, schedule="linear")
"""For runs without privacy, where small batches and many steps cost nothing. The model is that of the private recipe."""

KINDS: dict[str, Literal["image", "text"]] = {"csv": "text"}  # of tasks that can be known before they are loaded

EVALUATIONS = 20  # at most that many in a run


def augmentation(task: str) -> str:
    """Return how views of the images of a task are made: digits aren't mirrored, for their mirror images are no digits."""
    return "crop" if task in ("digits", "mnist") else "crop-flip"


def plain_recipe(task: str, kind: Literal["image", "text"], model: str | None, *, features: bool = False) -> Recipe:
    """Return the defaults of a run without privacy: the private run's model, pretraining and reading, and a fitting training."""
    private = recipe(task, kind, model, features=features)
    name = model or private.model
    plain = PLAIN_LINEAR if name == "linear" else PLAIN
    return replace(plain, model=name, pretrain_steps=private.pretrain_steps, task_options=private.task_options)


def recipe(task: str, kind: Literal["image", "text"], model: str | None, *, features: bool = False) -> Recipe:
    """Return the defaults for a task and the model that was asked for, if one was; ``features``: in place of pixels."""
    tuned = TUNED.get(task)
    if tuned is not None and model in (None, tuned.model):
        return tuned
    if features and model in (None, FEATURES.model):
        return FEATURES
    if kind == "text" and model not in (None, GENERAL["text"].model):
        return TEXT_NETWORK
    return GENERAL[kind]
