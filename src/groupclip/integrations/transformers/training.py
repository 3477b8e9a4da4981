"""The private part of a Trainer: batches, losses, backward passes, the budget, the log and the checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import SaveStrategy, TrainOutput, get_last_checkpoint
from transformers.utils.import_utils import is_datasets_available

from ...engine.engine import Engine
from ...errors import BudgetExceeded, PrivacyViolation
from ...privacy.mechanism import Mechanism
from ...run.metrics import EpsilonCurve
from ...sampling.batches import LogicalBatches, logical_batches
from ..epochs import Step, Steps, steps_in_an_epoch
from ..keeping import open_journal
from .arguments import check_arguments, planned_steps
from .keeping import go_on, save_state
from .losses import Loss, loss_of, per_sample_losses
from .publishing import Publishing

#: What transformers logs of the batches that were drawn. It has no noise.
UNNOISED = frozenset({"loss", "train_loss", "grad_norm", "num_input_tokens_seen"})


@dataclass
class Privately:
    """Holds what a private trainer has beside a plain one.

    Attributes:
        delta: at which epsilon is logged and stated.
        key: of the sampling; None for a secret one.
        looks: whether the training loss is computed and logged.
        steps: of the run under way.
    """

    engine: Engine
    mechanism: Mechanism
    delta: float
    key: bytes | None
    loss: Loss
    looks: bool
    curve: EpsilonCurve
    steps: Steps | None = None
    global_step: int = 0


class PrivateTraining(Publishing, Trainer):
    """What :class:`PrivateTrainer` and :func:`privatize` add to a Trainer; see there."""

    _privately: Privately

    @property
    def engine(self) -> Engine:
        """The engine: its ledger, epsilon, statement, and ``detach()``."""
        return self._privately.engine

    # ------------------------------------------------------------------ batches and steps

    def get_train_dataloader(self) -> Any:
        """Draw the batches of the steps that are left; each item is one logical batch."""
        privately = self._privately
        journal = open_journal(Path(str(self.args.output_dir)), self.engine)
        batches = self._logical_batches(privately.engine.ledger.steps if privately.engine.ledger else 0)
        privately.steps = Steps(batches, steps_in_an_epoch(privately.mechanism), privately.global_step, journal.charge)
        return privately.steps

    def _logical_batches(self, start: int) -> LogicalBatches:
        if self.train_dataset is None:
            raise ValueError("train_dataset is None: pass the data set that the mechanism was planned for")
        dataset: Any = self.train_dataset
        collate: Any = self.data_collator
        if is_datasets_available():
            import datasets

            if isinstance(dataset, datasets.Dataset):
                dataset = self._remove_unused_columns(dataset, description="training")
        collate = self._get_collator_with_removed_columns(collate, description="training")
        privately = self._privately
        return logical_batches(
            dataset, privately.mechanism, self.args.per_device_train_batch_size, start=start, collate=collate,
            key=privately.key, num_workers=self.args.dataloader_num_workers,
            prefetch=self.args.dataloader_prefetch_factor or 2,
        )  # fmt: skip

    def set_initial_training_values(
        self, args: Any, dataloader: Any
    ) -> tuple[int, int, int, int, int, int | None, int]:
        """Tell the Trainer's loop the plan: steps, and epochs of as many steps as draw every sample once on average."""
        mechanism = self._privately.mechanism
        steps, in_epoch = planned_steps(args, mechanism), steps_in_an_epoch(mechanism)
        size = math.ceil(mechanism.expected_batch_size)
        return math.ceil(steps / in_epoch), in_epoch, mechanism.dataset_size, steps * size, size, in_epoch, steps

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Step], None]:
        """Take the next logical batch. Nothing is counted in it: each sample's loss has a weight of its own."""
        drawn = next(epoch_iterator, None)
        return ([] if drawn is None else [drawn]), None

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Add the clipped gradients of one logical batch, micro-batch by micro-batch; it may hold no sample.

        Returns:
            0, or what ``unsafe_training_loss`` asks for: the sum of the samples' losses over the expected batch size.
        """
        privately = self._privately
        if not isinstance(inputs, Step):
            raise PrivacyViolation(
                f"training_step was given {type(inputs).__name__}, and not a batch that groupclip drew: leave get_train_dataloader "
                "and get_batch_samples as PrivateTrainer has them"
            )
        model.train()
        total = torch.zeros((), device=self.args.device)
        for piece in inputs.batch:
            samples = self._prepare_inputs(piece)
            with self.compute_loss_context_manager():
                losses = per_sample_losses(privately.engine, privately.loss, model, samples)
            privately.engine.backward(losses)
            if privately.looks:
                total += losses.detach().sum()
        return total / privately.mechanism.expected_batch_size

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> None:
        """Return nothing: the norm would be read before there is noise."""

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: the operations of a batch tell how many samples were drawn, which is secret."""
        return 0

    # ------------------------------------------------------------------ the run

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train to ``max_steps``, and never past the plan.

        Args:
            resume_from_checkpoint: a checkpoint of a private trainer in the same output folder, or True for the last one. Steps
                that were made after it stay spent; batches and noise come under new keys.

        Returns:
            As a Trainer; the training loss is nan unless ``unsafe_training_loss`` was asked for.

        Raises:
            BudgetExceeded: fewer steps are left of the plan.
            PrivacyViolation: a checkpoint of another plan, or without its ledger; settings changed to some that can't be.
        """
        privately, ledger = self._privately, self._ledger
        check_arguments(self.args, self.data_collator)
        wanted = planned_steps(self.args, privately.mechanism)
        privately.global_step = 0
        if resume_from_checkpoint:
            folder = self._checkpoint(resume_from_checkpoint)
            go_on(self.engine, folder, Path(str(self.args.output_dir)))
            privately.global_step = _global_step(folder)
            resume_from_checkpoint = str(folder)
        elif ledger.steps + wanted > privately.mechanism.steps:
            raise BudgetExceeded(
                f"{ledger.steps} of {privately.mechanism.steps} planned steps are released, and train() would make {wanted} more: "
                "go on with resume_from_checkpoint=True, or plan more steps in a new Mechanism before training starts"
            )
        if ledger.steps >= privately.mechanism.steps:
            ledger.check()
        try:
            with self._batches_drawn_afresh():
                output = super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)
        finally:
            if privately.steps is not None:
                privately.steps.close()
                privately.steps = None
        if privately.looks:
            return output
        metrics = {name: value for name, value in output.metrics.items() if name not in UNNOISED}
        return TrainOutput(output.global_step, math.nan, metrics)

    @property
    def _ledger(self) -> Any:
        assert self.engine.ledger is not None
        return self.engine.ledger

    @contextmanager
    def _batches_drawn_afresh(self) -> Any:
        """Let the loop skip no batch when a run goes on: they begin where the ledger stands."""
        before = self.args.ignore_data_skip
        self.args.ignore_data_skip = True
        try:
            yield
        finally:
            self.args.ignore_data_skip = before

    def _checkpoint(self, given: str | bool) -> Path:
        found = get_last_checkpoint(self.args.output_dir) if isinstance(given, bool) else given
        if found is None:
            raise ValueError(f"No valid checkpoint found in output directory ({self.args.output_dir})")
        return Path(found)

    # ------------------------------------------------------------------ what is seen

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log what is public, and the epsilon that is spent; nothing of the training data that has no noise."""
        privately = self._privately
        told = logs if privately.looks else {name: value for name, value in logs.items() if name not in UNNOISED}
        if self._ledger.steps and not self._ledger.obstacle:
            told = {**told, "epsilon": privately.curve.at(self._ledger.steps)}
        super().log(told, start_time)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **generation: Any,
    ) -> dict[str, float]:
        """Evaluate, on other data than the training data. ``generation``: what Seq2SeqTrainer takes for ``generate``.

        Raises:
            PrivacyViolation: these are the training data.
        """
        refuse_training_data(self.train_dataset, self.eval_dataset if eval_dataset is None else eval_dataset)
        return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix, **generation)

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: every run spends epsilon, and the choice among them too."""
        raise PrivacyViolation(
            "hyperparameter_search trains many times on the same records, and the plan counts one run. Draw the runs by "
            "gc.draw_runs, plan them by gc.calibrate_search, and train each by a PrivateTrainer of its own (docs/accounting.md)"
        )


class Following(TrainerCallback):
    """Keeps the Trainer's loop with the ledger: the epoch, the end of the budget, and a ledger in each checkpoint."""

    def __init__(self, privately: Privately) -> None:
        self._privately = privately

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        ledger, mechanism = self._privately.engine.ledger, self._privately.mechanism
        state.epoch = state.global_step / steps_in_an_epoch(mechanism)
        if ledger is not None and ledger.steps >= mechanism.steps and not control.should_training_stop:
            control.should_training_stop = True  # steps were lost in a crash: the plan ends earlier
            control.should_save = args.save_strategy != SaveStrategy.NO

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        save_state(Path(args.output_dir) / f"checkpoint-{state.global_step}", self._privately.engine)


def refuse_training_data(train: object, evaluated: Any) -> None:
    """Refuse an evaluation on the training data.

    Raises:
        PrivacyViolation: one of the data sets is the training data set.
    """
    for found in evaluated.values() if isinstance(evaluated, Mapping) else [evaluated]:
        if train is not None and found is train:
            raise PrivacyViolation(
                "eval_dataset is train_dataset: what is measured on the training data has no noise, and choosing the best model, "
                "an early stop or a learning rate by it would pass it on. Evaluate on held-out records (train_test_split)"
            )


def _global_step(folder: Path) -> int:
    from transformers import TrainerState

    return TrainerState.load_from_json(str(folder / "trainer_state.json")).global_step


def made_private(
    trainer: PrivateTraining, engine: Engine, mechanism: Mechanism, delta: float, key: bytes | None, looks: bool,
    loss: Callable[[Trainer], Loss] = loss_of,
) -> None:  # fmt: skip
    """Give a trainer its engine, and let it follow the ledger."""
    assert engine.ledger is not None
    trainer._privately = Privately(engine, mechanism, delta, key, loss(trainer), looks, EpsilonCurve(engine.ledger, delta))
    trainer.add_callback(Following(trainer._privately))
    if looks:
        engine.unsafe_look("mean training loss")
