"""The private steps of a run or of a cell of the paper's tables: charge, draw, clip, add noise, update."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, Literal

from torch import Tensor
from torch.optim import Optimizer

from ..distributed.agreement import agreed
from ..distributed.ranks import ranks
from ..engine.engine import Engine
from ..sampling.batches import LogicalBatch, LogicalBatches
from .optimizers import set_rate


class PrivateSteps:
    """Takes steps of an optimizer that an engine is attached to.

    Args:
        engine, optimizer: attached to one model.
        losses: micro-batch -> ``[B]``, one loss for each unit of privacy.
        rate: number of a step, from 1 -> its learning rate.

    Attributes:
        doing: what is under way. Weights may be half changed while it is "updating", and at no other time.
        step: the number of the step that was charged last here, from 1; 0 before the first.
    """

    def __init__(
        self, engine: Engine, optimizer: Optimizer, losses: Callable[[Any], Tensor], rate: Callable[[int], float]
    ) -> None:
        self._engine, self._optimizer, self._losses, self._rate = engine, optimizer, losses, rate
        self.doing: Literal["nothing", "charging", "computing", "updating"] = "nothing"
        self.step = 0

    def take(self, batches: LogicalBatches, charge: Callable[[], object]) -> Generator[int, None, None]:
        """Give the number of each step when its update was made. The gradients are still there: ``zero_grad`` is the caller's.

        A step is charged before its batch is drawn. Or else another batch might be drawn in the place of one that failed. On
        several processes a pass that fails in one of them is heard of in all before any updates.
        """
        first = batches.start + 1
        with closing(iter(batches)) as drawn:  # and so the workers end
            for step in range(first, first + len(batches)):
                self.doing, self.step = "charging", step
                charge()
                self.doing = "computing"
                set_rate(self._optimizer, self._rate(step))
                agreed(ranks(), lambda: self._compute(next(drawn)), "the passes of a step")
                self.doing = "updating"
                self._optimizer.step()
                self.doing = "nothing"
                yield step

    def _compute(self, batch: LogicalBatch) -> None:
        for piece in batch:
            self._engine.backward(self._losses(piece))
