"""Steps whose noise is correlated with that of steps before: on which batches they may be taken, and where a stretch ends."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..autograd.slot import Slot
from ..clipping.budget import GroupNoise
from ..errors import PrivacyViolation, UnsupportedOperation
from ..noise.correlated import CorrelatedNoise
from ..noise.grid import HardenedNoise
from ..noise.jointly import add_to_all
from ..noise.sources import NoiseSource
from ..privacy.ledger import Ledger
from ..privacy.mechanism import Mechanism
from ..privacy.toeplitz import coefficients
from ..sampling.claims import Drawn, Run

_log = logging.getLogger("groupclip")


class Factorised:
    """The correlated noise of one engine.

    A stretch goes on while steps are on one batch after the other of ONE iterator: only then is it known that a sample's steps are
    b or more apart. After anything else the noise is begun anew, and the ledger counts it. So it is where parameters got another
    type, shape or device: the noise that is kept doesn't fit their sums then.

    Args:
        mechanism: with more than one band.
    """

    def __init__(self, mechanism: Mechanism) -> None:
        self._noise = CorrelatedNoise(coefficients(mechanism.steps, mechanism.band_count))
        self._taken: tuple[Run, int] | None = None  # the batch of the last step whose noise was drawn: its run and number
        self._next: tuple[Run, int] | None = None
        self._anew = True
        self._refused = ""

    def begins(self, batch: Drawn | None, slots: Sequence[Slot], ledger: Ledger) -> bool:
        """Return whether the noise of the next step, which :meth:`add` draws, is begun anew.

        Args:
            batch: on which the step is, if that is one of groupclip's, whole and in turn.
            slots: all of the engine, as for :meth:`add`.
            ledger: which hasn't counted the step yet. Where a beginning leads past its plan, that is told.

        Raises:
            PrivacyViolation: it isn't, or an earlier step wasn't: which part of the data comes next isn't known then.
        """
        if batch is None:
            self._refused = self._refused or _REFUSED
        if self._refused or batch is None:
            raise PrivacyViolation(self._refused)
        self._next = (batch.run, batch.step)
        goes_on = self._taken == (batch.run, batch.step - 1) and self._noise.is_whole
        self._anew = not goes_on or not self._noise.fits(_tensors(slots))  # before the step is charged
        last, planned = ledger.last_step, ledger.mechanism.steps
        if self._anew and last < planned:
            _log.warning(
                f"correlated noise is begun anew at step {ledger.steps + 1}, which costs a round of its own: with more than {last} "
                f"of the {planned} planned steps, epsilon passes the figure that the plan was made for. Stop after step {last} to "
                "keep it; engine.epsilon(delta=..) counts what is spent"
            )
        return self._anew

    def add(self, noise: NoiseSource, slots: Sequence[Slot], stds: Mapping[str, float], sums: Mapping[int, Tensor]) -> None:
        """Add the noise of the next step.

        Args:
            noise: source of independent noise.
            slots: all of the engine, frozen ones too: whose noise goes on, unused.
            stds: of the independent noise, by group.
            sums: by ``id`` of a slot, what gets noise.
        """
        # If this fails, the next step isn't the one after the last that was taken, and begins anew.
        with torch._C.DisableTorchFunctionSubclass():
            if self._anew:
                self._noise.begin_anew()
                self._noise.prepare(_tensors(slots))
            for slot, found in zip(slots, self._noise.draw(noise, [stds[slot.group.name] for slot in slots]), strict=True):
                if id(slot) in sums:
                    total = sums[id(slot)]
                    total.add_(found if found.device == total.device else found.to(total.device))
        self._taken = self._next


def add_noise(
    noise: NoiseSource, sums: Sequence[tuple[Slot, Tensor]], stds: Mapping[str, float], slots: Sequence[Slot],
    correlated: Factorised | None,
) -> None:  # fmt: skip
    """Add the noise of a step to the sums of ``slots`` that take part: independent, or ``correlated`` with earlier steps'."""
    if correlated is None:
        add_to_all(noise, [(total, stds[slot.group.name]) for slot, total in sums])
    else:
        correlated.add(noise, slots, stds, {id(slot): total for slot, total in sums})


def _tensors(slots: Sequence[Slot]) -> list[Tensor]:
    return [slot.kept.data for slot in slots]


def factorised(mechanism: Mechanism | None) -> Factorised | None:
    """Return the correlated noise of a plan; None for one with independent noise, for a single step, or for clipping alone."""
    return None if mechanism is None or min(mechanism.band_count, mechanism.steps) == 1 else Factorised(mechanism)


def check_factorised(mechanism: Mechanism | None, amounts: GroupNoise, noise: NoiseSource, *, several: bool) -> None:
    """Check that noise may be correlated over the steps of a plan, where it asks for that.

    Raises:
        ValueError, UnsupportedOperation: what it doesn't go with.
    """
    if mechanism is None or mechanism.band_count == 1:
        return
    bands = f"bands={mechanism.bands}"
    if amounts.moves:
        raise ValueError(
            f"{bands} with Adaptive thresholds: noise that cancels over steps has to be of one size in all of them, and thresholds "
            "that move change it. Give fixed thresholds=, or plan with bands=1"
        )
    if isinstance(noise, HardenedNoise):
        raise ValueError(
            f"{bands} with HardenedNoise: sums of earlier steps' noise don't lie on its grid. Leave noise= out, or plan "
            "with bands=1"
        )
    if several:
        raise UnsupportedOperation(
            f"{bands} under several processes: parts of the data and earlier noise aren't shared among ranks. Train on one "
            "process, or plan with bands=1"
        )


_REFUSED = (
    "with correlated noise (bands > 1) a step was not on exactly one whole batch that groupclip drew, in turn: a batch of your "
    "own, part of a logical batch, one that had a step already, or one before it had none. A sample may come again too early then, "
    "and the noise of its steps would cancel. Draw batches by groupclip.logical_batches(dataset, mechanism) without key=, and "
    "take one step on each. To go on, detach this engine and attach again (what was spent stays spent), or plan with bands=1"
)
