"""``PrivateTraining``: the callback that makes ``Trainer.fit`` private for as long as it runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from ...clipping.adaptive import Adaptive
from ...clipping.functions import ClipFunction
from ...engine.attach import attach
from ...engine.engine import Engine
from ...errors import PrivacyViolation
from ...noise.sources import NoiseSource
from ...partition.groups import Partition
from ...privacy.spent import default_delta
from ...privacy.thresholds import Thresholds
from ...run.metrics import EpsilonCurve
from ..keeping import go_on_from, open_journal
from .batches import PrivateBatches
from .checks import check_trainer
from .steps import PrivateModule


class PrivateTraining(Callback):
    """Trains a LightningModule privately: ``Trainer(callbacks=[PrivateTraining(groups=..)])`` with :class:`PrivateBatches`.

    Under automatic optimization ``training_step`` runs on every record alone, as a batch of one, and returns its loss. Under manual
    optimization ``training_step`` is given the pieces of a batch: see docs/lightning.md.

    Args:
        groups: of parameters that are clipped together; a style, or as for :func:`groupclip.partition`.
        delta: at which epsilon is logged; :func:`groupclip.default_delta` of the number of records by default.
        clip, thresholds, allocation, noise: as for :func:`groupclip.attach`.
        unsafe_training_loss: log the mean training loss as ``train_loss``, which has no noise. The statement tells it.

    ``fit`` raises PrivacyViolation, CoverageError or BudgetExceeded for what can't train privately; the message names the fix.
    """

    def __init__(
        self,
        groups: Partition | str | Mapping[str, str] | Callable[[str], str],
        *,
        delta: float | None = None,
        clip: str | ClipFunction = "automatic",
        thresholds: Thresholds | Adaptive = 1.0,
        allocation: str | Mapping[str, float] = "equal",
        noise: NoiseSource | None = None,
        unsafe_training_loss: bool = False,
    ) -> None:
        self._groups, self._delta, self._looks = groups, delta, unsafe_training_loss
        self._clip, self._thresholds, self._allocation, self._noise = clip, thresholds, allocation, noise
        self._engine: Engine | None = None
        self._saved: dict[str, Any] | None = None  # of an earlier fit, or of a checkpoint
        self._from_checkpoint = False
        self._running: _Running | None = None

    @property
    def engine(self) -> Engine:
        """The engine: its ledger, epsilon and statement. It is detached when ``fit`` ends. PrivacyViolation before training."""
        if self._engine is None:
            raise PrivacyViolation("nothing was trained by this callback yet: call trainer.fit first")
        return self._engine

    # ------------------------------------------------------------------ the run

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach, and go on where a checkpoint or an earlier ``fit`` ended.

        Raises:
            PrivacyViolation, CoverageError, BudgetExceeded: what can't train privately; nothing is changed then.
        """
        loader = check_trainer(trainer, pl_module)
        if trainer.ckpt_path is not None and not self._from_checkpoint:
            raise PrivacyViolation(
                f"{trainer.ckpt_path} holds no ledger of PrivateTraining, so what its weights have spent is not known. Go on from "
                "a checkpoint of a private run, or load the weights before fit and begin a new plan"
            )
        optimizer, plan = trainer.optimizers[0], loader.mechanism
        engine = attach(
            pl_module, optimizer, self._groups, plan, clip=self._clip, thresholds=self._thresholds,
            allocation=self._allocation, noise=self._noise,
        )  # fmt: skip
        assert engine.ledger is not None
        try:
            output = Path(trainer.default_root_dir)
            if self._saved is not None and self._from_checkpoint:
                go_on_from(engine, self._saved, output, Path(str(trainer.ckpt_path)).name)
            elif self._saved is not None:
                engine.load_state_dict(self._saved)
            engine.ledger.check()
            journal = open_journal(output, engine)
        except BaseException:
            engine.detach()
            raise
        if self._looks:
            engine.unsafe_look("mean training loss")
        delta = default_delta(plan.dataset_size) if self._delta is None else self._delta
        self._engine, self._saved, self._from_checkpoint = engine, None, False
        self._running = _Running(trainer, pl_module, engine, loader, optimizer, delta, self._looks)
        loader.begin(engine.ledger.steps, journal.charge)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log epsilon, and stop at the budget."""
        ledger = self.engine.ledger
        assert ledger is not None and self._running is not None
        over = ledger.steps >= ledger.mechanism.steps
        if not ledger.obstacle and (over or ledger.steps % trainer.log_every_n_steps == 0):  # pyright: ignore[reportAttributeAccessIssue]
            pl_module.log("epsilon", self._running.curve.at(ledger.steps), prog_bar=True, batch_size=1)
        if self._looks:
            pl_module.log("train_loss", self._running.steps.mean_loss(), batch_size=1)
        if over:
            trainer.should_stop = True

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Make module and optimizer plain again."""
        self._leave()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Make module and optimizer plain again."""
        self._leave()

    def _leave(self) -> None:
        if self._running is not None:
            self._saved = self.engine.state_dict()  # for another fit
            self._running.end()
            self._running = None

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the engine: neither key, seed nor statistic of the data."""
        return {} if self._engine is None else self._engine.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Hear what a checkpoint holds; it is loaded when training starts."""
        self._saved, self._from_checkpoint = state_dict, bool(state_dict)


class _Running:
    """What stands on trainer, module and optimizer while ``fit`` runs."""

    def __init__(
        self, trainer: Trainer, module: LightningModule, engine: Engine, loader: PrivateBatches, optimizer: Optimizer, delta: float,
        looks: bool,
    ) -> None:  # fmt: skip
        assert engine.ledger is not None
        self.curve = EpsilonCurve(engine.ledger, delta)
        self.steps = PrivateModule(trainer, module, engine, looks)
        self._engine, self._loader, self._optimizer = engine, loader, optimizer
        self._step_before = vars(optimizer).get("step")
        optimizer.step = _without_closure(optimizer.step)  # pyright: ignore[reportAttributeAccessIssue]

    def end(self) -> None:
        self._loader.end()
        self.steps.end()
        if self._step_before is None:
            del self._optimizer.step
        else:
            self._optimizer.step = self._step_before
        self._engine.detach()


def _without_closure(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step that calls Lightning's closure first: it computes the gradients of the batch, once."""

    @functools.wraps(step)
    def stepping(closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        step()
        return loss

    return stepping
