"""``PrivateTrainer``, and ``privatize`` for the subclasses of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from ...clipping.adaptive import Adaptive
from ...clipping.functions import ClipFunction
from ...engine.engine import Engine
from ...errors import GroupClipError, PrivacyViolation
from ...noise.sources import NoiseSource
from ...partition.groups import Partition
from ...privacy.mechanism import Mechanism
from ...privacy.spent import default_delta
from ...privacy.thresholds import Thresholds
from .. import accelerate
from .arguments import check_arguments, planned_steps
from .training import PrivateTraining, made_private, refuse_training_data

Groups = Partition | str | Mapping[str, str] | Callable[[str], str]


class PrivateTrainer(PrivateTraining):
    """Trains as ``transformers.Trainer``, with differential privacy.

    Args:
        mechanism: the plan, calibrated: how many records, how large a batch, how many steps, how much noise.
        groups: of parameters that are clipped together; a style, or as for :func:`groupclip.partition`.
        delta: at which epsilon is logged and stated; :func:`groupclip.default_delta` of the number of records by default.
        clip, thresholds, allocation, noise: as for :func:`groupclip.attach`.
        sampling_key: 32 bytes, for tests only: with a known key no epsilon is claimed.
        unsafe_training_loss: log the mean training loss, which has no noise. The statement tells it.

    All other arguments are Trainer's own (``model``, ``data_collator``, ``train_dataset``, ``eval_dataset``, ``processing_class``,
    ``compute_metrics``, ``callbacks``, ``optimizers``, ``optimizer_cls_and_kwargs``, ``preprocess_logits_for_metrics``), but for
    ``model_init``, which is refused. These mean something else, or are refused with the fix:
    ``per_device_train_batch_size`` is the micro-batch (memory and speed alone; the batch is the mechanism's), ``max_steps`` is at
    most the mechanism's steps, ``max_grad_norm`` must be 0, ``gradient_accumulation_steps`` 1. See docs/trainer.md.

    ``compute_loss``, ``compute_loss_func`` and label smoothing run on every sample alone, as a batch of one. So a sample's loss is
    the mean over its own tokens.

    Raises:
        PrivacyViolation: a setting that would break the guarantee; the message names the fix.
        ValueError, BudgetExceeded, CoverageError: a plan of other steps or records; as groupclip.attach.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., Any] | None = None,
        compute_loss_func: Callable[..., Any] | None = None,
        compute_metrics: Callable[..., Any] | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[..., Any] | None = None,
        *,
        mechanism: Mechanism,
        groups: Groups,
        delta: float | None = None,
        clip: str | ClipFunction = "automatic",
        thresholds: Thresholds | Adaptive = 1.0,
        allocation: str | Mapping[str, float] = "equal",
        noise: NoiseSource | None = None,
        sampling_key: bytes | None = None,
        unsafe_training_loss: bool = False,
    ) -> None:
        check_arguments(args, data_collator)  # before a Trainer makes folders, or a repository on the hub
        _check_model_init(model_init)
        _check_mechanism(mechanism)
        planned_steps(cast(TrainingArguments, args), mechanism)
        super().__init__(
            model=cast(Any, model), args=args, data_collator=data_collator, train_dataset=train_dataset,
            eval_dataset=eval_dataset, processing_class=processing_class, compute_loss_func=compute_loss_func,
            compute_metrics=compute_metrics, callbacks=callbacks, optimizers=cast(Any, optimizers),
            optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
        )  # fmt: skip
        engine = _attach(self, groups, mechanism, clip, thresholds, allocation, noise)
        made_private(self, engine, mechanism, _delta(delta, mechanism), sampling_key, unsafe_training_loss)


def privatize(
    trainer: Trainer,
    *,
    mechanism: Mechanism,
    groups: Groups,
    delta: float | None = None,
    clip: str | ClipFunction = "automatic",
    thresholds: Thresholds | Adaptive = 1.0,
    allocation: str | Mapping[str, float] = "equal",
    noise: NoiseSource | None = None,
    sampling_key: bytes | None = None,
    unsafe_training_loss: bool = False,
) -> PrivateTraining:
    """Make a trainer that somebody subclassed train privately: Seq2SeqTrainer, trl's SFTTrainer, your own.

    Args:
        trainer: not trained yet. It is changed in place: its class becomes a subclass of the one it has.
        mechanism, groups, delta, clip, thresholds, allocation, noise, sampling_key, unsafe_training_loss: as for
            :class:`PrivateTrainer`.

    Returns:
        The same trainer, which has ``.engine`` now. Its ``compute_loss`` runs on every sample alone.

    Raises:
        PrivacyViolation, ValueError, BudgetExceeded, CoverageError: as :class:`PrivateTrainer`; nothing is changed then.
        GroupClipError: a trainer that is private already.
    """
    if isinstance(trainer, PrivateTraining):
        raise GroupClipError("the trainer is private already: its plan can't be changed. Make a new trainer")
    check_arguments(trainer.args, trainer.data_collator)
    _check_model_init(trainer.model_init)
    _check_mechanism(mechanism)
    planned_steps(trainer.args, mechanism)
    for name in ("get_train_dataloader", "training_step", "get_batch_samples", "_inner_training_loop"):
        owner = next(c for c in type(trainer).__mro__ if name in vars(c))
        if owner is not Trainer and owner.__module__.partition(".")[0] not in ("transformers", "trl"):
            raise PrivacyViolation(
                f"{owner.__name__}.{name} is the class's own, and a private trainer draws batches and makes steps itself, so it "
                "would be left out. Move what it does into compute_loss, the data set or the collator, and take it out of the class"
            )
    engine = _attach(trainer, groups, mechanism, clip, thresholds, allocation, noise)
    kind = type(trainer)
    trainer.__class__ = type(f"Private{kind.__name__}", (PrivateTraining, kind), {"__module__": kind.__module__})
    private = cast(PrivateTraining, trainer)
    made_private(private, engine, mechanism, _delta(delta, mechanism), sampling_key, unsafe_training_loss)
    return private


def _attach(
    trainer: Trainer, groups: Groups, mechanism: Mechanism, clip: str | ClipFunction, thresholds: Thresholds | Adaptive,
    allocation: str | Mapping[str, float], noise: NoiseSource | None,
) -> Engine:  # fmt: skip
    refuse_training_data(trainer.train_dataset, trainer.eval_dataset)
    size = len(cast(Any, trainer.train_dataset)) if trainer.train_dataset is not None else mechanism.dataset_size
    if size != mechanism.dataset_size:
        raise ValueError(
            f"train_dataset holds {size} samples, and the mechanism was planned for dataset_size={mechanism.dataset_size}: the "
            "sample rate would be wrong. Build the Mechanism with dataset_size=len(train_dataset), and calibrate again"
        )
    model, before = cast(nn.Module, trainer.model), trainer.optimizer
    mode = model.training
    model.train()
    try:
        return accelerate.attach(
            trainer.accelerator, model, trainer.create_optimizer(), groups, mechanism,
            clip=clip, thresholds=thresholds, allocation=allocation, noise=noise,
        )  # fmt: skip
    except BaseException:
        trainer.optimizer = before
        model.train(mode)
        raise


def _check_mechanism(mechanism: object) -> None:
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"mechanism is {type(mechanism).__name__}; it must be a groupclip.Mechanism, calibrated")
    if mechanism.unit != "sample":
        raise ValueError(
            f"the mechanism was planned for unit={mechanism.unit!r}, and a Trainer's batches are of samples: plan for samples, or "
            "write a loop with gc.PerUser"
        )


def _check_model_init(model_init: object) -> None:
    if model_init is not None:
        raise PrivacyViolation(
            "model_init makes a new model at each train(), and the plan counts one run. Pass model=model_init(); several runs are "
            "planned by gc.calibrate_search"
        )


def _delta(given: float | None, mechanism: Mechanism) -> float:
    return default_delta(mechanism.dataset_size) if given is None else given
