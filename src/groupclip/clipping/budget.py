"""The thresholds of the groups and the noise that goes with them, from one plan; both may move from step to step.

What never moves is what they amount to: in every step the noise multiplier of all that is released is the plan's.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..noise.grid import HardenedNoise, planned_for, rounding
from ..noise.sources import NoiseSource
from ..privacy.allocation import noise_stds
from ..privacy.thresholds import Thresholds, group_thresholds
from .adaptive import Adaptive, Counts
from .functions import LossReduction


class GroupNoise:
    """Knows the thresholds of one run, and how much noise each group needs.

    Args:
        thresholds: fixed ones, or :class:`Adaptive`.
        allocation: see :func:`groupclip.privacy.allocation.noise_stds`.
        sizes: number of coordinates, by group.
        sigma: the plan's noise multiplier; 0 for none.
        noise: its source. Hardened noise pays for its rounding with a little more of it.
        loss_reduction: of the engine. Thresholds can move only if every backward pass goes through the engine.

    Raises:
        ValueError: an allocation that amounts to less than the plan, fixed noise beside thresholds that move, or
            thresholds that move without noise or outside ``engine.backward``.
    """

    def __init__(
        self, thresholds: Thresholds | Adaptive, allocation: str | Mapping[str, float], sizes: Mapping[str, int],
        sigma: float, noise: NoiseSource, loss_reduction: LossReduction = "none",
    ) -> None:  # fmt: skip
        start = thresholds.start if isinstance(thresholds, Adaptive) else thresholds
        self.thresholds = group_thresholds(start, list(sizes))  # moved in place: others look at this mapping
        self._counts = Counts(thresholds, self.thresholds) if isinstance(thresholds, Adaptive) else None
        if self._counts and sigma == 0:
            raise ValueError(
                "Adaptive thresholds without noise: they would follow the norms of single samples. Attach with a mechanism that "
                "has noise, or give the thresholds"
            )
        if self._counts and loss_reduction != "none":
            raise ValueError(
                f"Adaptive thresholds with loss_reduction={loss_reduction!r}: a pass of loss.backward() that fails half-way would "
                "count its samples twice. Use engine.backward(losses), or give the thresholds"
            )
        if self._counts and isinstance(allocation, Mapping):
            raise ValueError(
                "allocation= gives fixed noise while the thresholds move, so what it amounts to would move as well: use one "
                "of the named allocations"
            )
        self._allocation, self._sizes, self._noise = allocation, dict(sizes), noise
        coordinates = sum(sizes.values()) + (len(sizes) if self._counts else 0)
        hardened = isinstance(noise, HardenedNoise) and sigma > 0
        self.rounding = rounding(coordinates) if hardened else 0.0
        self._sigma = planned_for(sigma, coordinates) if hardened else sigma
        noise_stds(allocation, self.thresholds, self._sizes, self._gradients)  # raises now, not in the first step

    @property
    def _gradients(self) -> float:
        return self._counts.facts.gradient_multiplier(self._sigma) if self._counts else self._sigma

    @property
    def stds(self) -> dict[str, float]:
        """s_m: the standard deviation of the noise on every coordinate of each group's sum, in the next step."""
        return noise_stds(self._allocation, self.thresholds, self._sizes, self._gradients)

    @property
    def other_releases(self) -> dict[str, float]:
        """Noise multipliers of what else a step releases."""
        return self._counts.facts.release(self._sigma) if self._counts else {}

    @property
    def moves(self) -> bool:
        """Whether the thresholds change from step to step."""
        return self._counts is not None

    def saw(self, group: str, norms: Tensor) -> None:
        """Take the norms ``[B]`` of a group's per-sample gradients in one backward pass. They are secret until :meth:`advance`."""
        if self._counts:
            self._counts.saw(group, norms)

    def counted(self) -> dict[str, float]:
        """Return what :meth:`recount` goes back to when a backward pass fails: its samples may come again. Secret."""
        return self._counts.now() if self._counts else {}

    def recount(self, counted: Mapping[str, float]) -> None:
        """Forget what was seen since ``counted``."""
        if self._counts:
            self._counts.back_to(counted)

    def discard(self) -> None:
        """Forget the logical batch under way."""
        if self._counts:
            self._counts.discard()

    def shared_by(self, noise: NoiseSource) -> None:
        """Release what moves the thresholds by ``noise``, which sums over several processes first."""
        self._noise = noise

    def advance(self, expected_batch_size: float) -> None:
        """Once a step, after its noise was added: release what moves the thresholds, and move them."""
        if self._counts:
            self.thresholds.update(self._counts.release(self._noise, self._sigma, expected_batch_size))

    def load(self, thresholds: Mapping[str, float]) -> None:
        """Go on with the moved thresholds of a saved run."""
        if self._counts:
            self._counts.load(thresholds)
            self.thresholds.update(self._counts.thresholds)
