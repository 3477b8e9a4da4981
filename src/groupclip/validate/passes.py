"""What is known of passes: which numbers they draw, and what they leave behind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .draws import Draws
from .draws_elsewhere import DrawsElsewhere
from .kinds import Drawn, Kind
from .state import State


@dataclass(frozen=True)
class Script:
    """Says what a pass draws.

    Attributes:
        torch, elsewhere: of torch, and of numpy and Python.
        single: what a sample alone draws of torch.
        chance: more than numbers of single samples.
    """

    torch: list[Kind | None]
    elsewhere: list[Kind | None]
    chance: bool
    single: Sequence[Drawn] = ()

    @property
    def differs_elsewhere(self) -> bool:
        """Whether every sample draws NumPy numbers separately."""
        return any(kind is not None and kind.axis is not None for kind in self.elsewhere)

    @property
    def ordered(self) -> bool:
        """Whether samples draw single numbers: something may be done by them, or in their order."""
        return any(
            k is not None and k.axis is not None and math.prod(k.single.shape) == 1
            for k in (*self.torch, *self.elsewhere)
        )


@dataclass(frozen=True)
class Trace:
    """Holds what a pass left behind: values by name, and weights that aren't what they were."""

    state: State
    weights: dict[str, Tensor]

    def differing(self, other: Trace) -> dict[str, bool]:
        """Return names of what isn't the same in the other, and whether ``state_dict`` holds it."""
        found = dict.fromkeys(self.state.differing(other.state))
        names = dict.fromkeys([*self.weights, *other.weights])
        moved = [
            n
            for n in names
            if n not in self.weights or n not in other.weights or not torch.equal(self.weights[n], other.weights[n])
        ]
        return {n: self.state.saves(n) or other.state.saves(n) for n in found} | dict.fromkeys(moved, True)


@dataclass
class Pass:
    """A pass under way; ``before`` it, model and loss held this."""

    draws: Draws
    elsewhere: DrawsElsewhere
    before: State


@dataclass(frozen=True)
class Rehearsal:
    """Holds what was seen of the first passes of a round.

    Attributes:
        traces: what each batch of two samples left behind, all with the same draws; of the first batch alone, if that was enough:
            it left nothing, and drew what its samples always draw.
        loss: of the first sample in the first batch; None if it may have drawn something else than it always does.
    """

    traces: list[Trace]
    loss: float | None
