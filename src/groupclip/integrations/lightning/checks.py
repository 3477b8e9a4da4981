"""Settings of a Lightning Trainer that a private run can't have: what was found, why not, and what to write instead."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy

from ...errors import PrivacyViolation
from .batches import PrivateBatches

_CLIPS = (
    "clips a gradient that is clipped by samples already, before the noise that is made for it is added. Leave it out; "
    "PrivateTraining(thresholds=R) says how long a sample's gradient may be"
)
_JOINS = (
    "joins batches that were drawn for several steps of the plan. Leave it at 1: a batch is as large as the plan's "
    "expected_batch_size, and is computed in pieces of PrivateBatches(microbatch=..)"
)


def check_trainer(trainer: Trainer, module: LightningModule) -> PrivateBatches:
    """Refuse what would break the guarantee, and return the loader.

    Raises:
        PrivacyViolation: a setting, hook or loader; the message names the fix.
    """
    if trainer.world_size > 1 or not isinstance(trainer.strategy, SingleDeviceStrategy):
        raise PrivacyViolation(
            f"strategy={type(trainer.strategy).__name__} on {trainer.world_size} processes would draw as many batches and add as "
            "many noises, of which the plan counts one. Write Trainer(devices=1, num_nodes=1) and leave strategy= out"
        )
    if trainer.gradient_clip_val:
        raise PrivacyViolation(f"gradient_clip_val={trainer.gradient_clip_val} {_CLIPS}")
    if trainer.accumulate_grad_batches != 1:
        raise PrivacyViolation(f"accumulate_grad_batches={trainer.accumulate_grad_batches} {_JOINS}")
    for callback in trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(callback, GradientAccumulationScheduler) and set(callback.scheduling.values()) != {1}:
            raise PrivacyViolation(f"the callback GradientAccumulationScheduler {_JOINS}")
    precision = trainer.precision_plugin
    if isinstance(precision, MixedPrecision) and precision.scaler is not None:
        raise PrivacyViolation(
            f"precision={trainer.precision!r} brings a scaler, which divides gradients after they were clipped and skips steps by "
            "looking at gradients without noise. Write precision='bf16-mixed', or leave it out"
        )
    if trainer.reload_dataloaders_every_n_epochs:  # pyright: ignore[reportAttributeAccessIssue]
        raise PrivacyViolation(
            "reload_dataloaders_every_n_epochs makes a new loader, which would draw the steps of the plan again. Leave it at 0"
        )
    if trainer.overfit_batches:  # pyright: ignore[reportAttributeAccessIssue]
        raise PrivacyViolation(
            "overfit_batches takes the same batches again, while the plan's are drawn afresh. Leave it out; limit_train_batches "
            "makes shorter epochs"
        )
    for name, why in (
        ("configure_gradient_clipping", "changes gradients before they have noise"),
        ("optimizer_step", "takes the step, which the callback does once a batch"),
        ("backward", "makes the backward pass, which the callback does one sample apart from the other"),
    ):
        if getattr(type(module), name) is not getattr(LightningModule, name):
            raise PrivacyViolation(
                f"{type(module).__name__}.{name} is the class's own, and {why}: take it out of the class"
            )
    for owner, plain in ((module, LightningModule), (trainer.datamodule, LightningDataModule)):  # pyright: ignore[reportAttributeAccessIssue]
        for name in ("on_before_batch_transfer", "on_after_batch_transfer"):
            if owner is not None and getattr(type(owner), name) is not getattr(plain, name):
                raise PrivacyViolation(
                    f"{type(owner).__name__}.{name} is given several records at once, and may mix them (mixup, normalising over "
                    "the batch): do what it does in training_step, which runs on each record alone, or in the data set"
                )
    if len(trainer.optimizers) != 1:
        raise PrivacyViolation(
            f"configure_optimizers gives {len(trainer.optimizers)} optimizers, and each step of one is a step of the plan: give "
            "one for all that trains privately, and step the others in a loop of your own (gc.attach)"
        )
    return _loader(trainer)


def _loader(trainer: Trainer) -> PrivateBatches:
    loader = trainer.train_dataloader
    if not isinstance(loader, PrivateBatches):
        raise PrivacyViolation(
            f"train_dataloaders is {type(loader).__name__}, whose batches aren't drawn as the plan says. Pass "
            "groupclip.integrations.lightning.PrivateBatches(dataset, mechanism, microbatch=..), also from train_dataloader()"
        )
    held_out: Any = trainer.val_dataloaders
    for other in held_out if isinstance(held_out, (list, tuple)) else [held_out]:
        if getattr(other, "dataset", None) is loader.dataset:
            raise PrivacyViolation(
                "val_dataloaders reads the training data: what is measured there has no noise, and choosing a checkpoint or an "
                "early stop by it would pass it on. Evaluate on held-out records (torch.utils.data.random_split)"
            )
    asked = max(trainer.min_steps or 0, (trainer.min_epochs or 0) * len(loader))
    if asked > loader.mechanism.steps:
        raise PrivacyViolation(
            f"min_steps={trainer.min_steps} and min_epochs={trainer.min_epochs} ask for {asked} steps, and the mechanism plans "
            f"{loader.mechanism.steps}. Leave them out, or plan Mechanism(steps={asked}) and calibrate it"
        )
    return loader
