"""What a module does with one logical batch: its ``training_step`` on every record alone, or its own loop over the pieces."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from ...engine.engine import Engine
from ...errors import PrivacyViolation
from ..epochs import Step

_log = logging.getLogger("groupclip")
_REPLACED = ("training_step", "backward")
_LOGGING = ("log", "log_dict")


class Pieces:
    """The pieces of a batch on the module's device, for a ``training_step`` that optimizes by hand. Can be iterated once."""

    def __init__(self, trainer: Trainer, step: Step) -> None:
        self._trainer, self._step = trainer, step

    def __iter__(self) -> Iterator[Any]:
        for piece in self._step.batch:
            yield on_device(self._trainer, piece)


def on_device(trainer: Trainer, piece: Any) -> Any:
    """Return a piece where the module is, and in its precision."""
    return trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(piece))


class PrivateModule:
    """Stands in the place of two methods of the module until :meth:`end`: ``training_step`` and ``backward``.

    Lightning clears gradients between them, so what is computed of a batch is computed in ``backward``.
    """

    def __init__(self, trainer: Trainer, module: LightningModule, engine: Engine, looks: bool) -> None:
        self._trainer, self._module, self._engine, self._looks = trainer, module, engine, looks
        self._total = torch.zeros(())
        self._own_step = module.training_step
        self._takes_index = len(inspect.signature(module.training_step).parameters) > 1  # as Lightning decides it
        self._batch: tuple[Step, int] | None = None
        self._said: set[str] = set()
        self._before = {name: vars(module)[name] for name in _REPLACED if name in vars(module)}

        def training_step(batch: Any, batch_idx: int = 0) -> Any:
            return self._training_step(batch, batch_idx)

        def backward(loss: Tensor, *args: Any, **kwargs: Any) -> None:
            self._backward(loss)

        module.training_step = training_step
        module.backward = backward

    def end(self) -> None:
        """Give the module its methods back."""
        for name in _REPLACED:
            del self._module.__dict__[name]
        self._module.__dict__.update(self._before)

    def mean_loss(self) -> Tensor:
        """Return the sum of the last batch's losses over the expected batch size. It has no noise."""
        assert self._engine.mechanism is not None
        return self._total / self._engine.mechanism.expected_batch_size

    def _training_step(self, batch: Any, batch_idx: int) -> Any:
        if not isinstance(batch, Step):
            raise PrivacyViolation(
                f"training_step was given {type(batch).__name__}, and not a batch that groupclip drew: call it by trainer.fit alone"
            )
        self._total = torch.zeros((), device=self._module.device)
        if not self._module.automatic_optimization:
            return self._step_of(Pieces(self._trainer, batch), batch_idx)
        self._batch = (batch, batch_idx)
        return torch.zeros((), device=self._module.device, requires_grad=True)

    def _backward(self, loss: Tensor) -> None:
        if not self._module.automatic_optimization:
            self._note(loss)
            self._engine.backward(loss)
            return
        assert self._batch is not None
        (step, batch_idx), self._batch = self._batch, None
        for piece in Pieces(self._trainer, step):
            with self._trainer.precision_plugin.train_step_context():
                losses = self._engine.per_sample(lambda record: self._loss(record, batch_idx), piece)
            self._note(losses)
            self._engine.backward(losses)

    def _note(self, losses: Tensor) -> None:
        if self._looks:
            self._total = self._total + losses.detach().sum()

    def _loss(self, record: Any, batch_idx: int) -> Tensor:
        """Run the module's own step on one record."""
        found = self._step_of(record, batch_idx)
        loss = found.get("loss") if isinstance(found, Mapping) else found
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            told = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise PrivacyViolation(
                f"training_step gave {told} for a batch of one record: it must return one number, its loss"
            )
        return loss.reshape(())

    def _step_of(self, batch: Any, batch_idx: int) -> Any:
        """Call it with what it logs left out: it is of single records, without noise."""
        own = vars(self._module)
        before = {name: own[name] for name in _LOGGING if name in own}
        own.update(dict.fromkeys(_LOGGING, self._not_logged))
        try:
            return self._own_step(batch, batch_idx) if self._takes_index else self._own_step(batch)
        finally:
            for name in _LOGGING:
                del own[name]
            own.update(before)

    def _not_logged(self, name: Any, *args: Any, **kwargs: Any) -> None:
        told = ", ".join(map(str, name)) if isinstance(name, Mapping) else str(name)
        if told not in self._said:
            self._said.add(told)
            _log.warning(
                f"training_step logs {told!r}, which is of training records and has no noise: it isn't logged. Log what is "
                "measured on held-out records, in validation_step; PrivateTraining(unsafe_training_loss=True) logs the loss, and "
                "the statement tells it"
            )
