"""Public pretraining before the private steps: drawn letters, no record of anybody, no privacy spent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import nn

from ..models import pretrain_on_letters
from ..models.cnn import SmallCNN
from ..models.vit import VisionTransformer
from ..tasks import Task
from .build import Trainer, attached, average_of
from .company import company
from .config import RunConfig
from .errors import ConfigError


def check_pretrainable(config: RunConfig, model: nn.Module) -> None:
    """Raise ConfigError if the settings ask for pretraining that the model can't have."""
    if config.pretrain_steps and not isinstance(model, VisionTransformer | SmallCNN):
        raise ConfigError(
            f"pretrain_steps={config.pretrain_steps}, but only the ViTs and cnn-small can be pretrained on drawn "
            f"letters, not {config.model}: set it to 0"
        )


def pretrained(
    config: RunConfig, task: Task, trainer: Trainer, on_step: Callable[[int], None]
) -> tuple[Trainer, dict[str, object]]:
    """Return a trainer whose model was pretrained, and facts about that for reports.

    The engine is taken off meanwhile, which it can be since no private step was taken, and a new one put on. Of several
    processes the first pretrains, and sends its weights to the others.
    """
    trainer.engine.detach()
    together = company()

    def pretrain() -> dict[str, object]:
        return pretrain_on_letters(
            trainer.model, task.input_shape, steps=config.pretrain_steps, seed=config.seed, on_step=on_step
        )

    facts = together.first(pretrain, "the public pretraining") or {}
    together.weights_of_first(trainer.model)
    engine = attached(
        config, task, trainer.model, trainer.optimizer, trainer.groups, trainer.mechanism, trainer.reservation
    )
    return replace(trainer, engine=engine, average=average_of(config, trainer.model)), facts
