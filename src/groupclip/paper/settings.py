"""What is chosen for one run of a table: everything that two runs of one workload can differ in."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..arguments import positive, whole
from ..clipping.adaptive import Adaptive
from ..engine.averages import Averaging
from ..privacy.mechanism import Mechanism
from ..run.optimizers import OPTIMIZERS, SCHEDULES


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The settings of one run.

    Args:
        epsilon: what the whole run may spend; None trains without privacy (no clipping, no noise, shuffled batches).
        delta: at which epsilon is stated; ignored without privacy.
        batch_size: EXPECTED size of a Poisson batch; without privacy, the size of every batch.
        lr: of the first step.
        epochs: how often each record is drawn on average; or give ``steps``.
        microbatch: most samples held at once; changes memory and speed alone.
        schedule: of the learning rate: constant, or falling to zero in a line or half a cosine.
        optimizer: adamw or sgd (with ``momentum``).
        clipping: style of the groups, or a mapping from parameter names to groups, as for :func:`groupclip.partition`.
        clip: clip function, as for :func:`groupclip.attach`.
        thresholds: R (then ``R_m = R / sqrt(M)``), or :class:`groupclip.Adaptive`, which pays for itself.
        average: of the weights after every step, which is scored in place of the last ones: none, or as of
            :class:`groupclip.WeightAverage`.
        views: K of each record, whose mean gradient is clipped; the workload's losses make them.
        seed: of what is public: the order of batches and dropout without privacy. Never of noise or sampling.

    Raises:
        ValueError, TypeError: naming the setting.
    """

    epsilon: float | None
    delta: float
    batch_size: int
    lr: float
    epochs: float | None = None
    steps: int | None = None
    microbatch: int = 64
    schedule: str = "constant"
    optimizer: str = "adamw"
    momentum: float = 0.0
    weight_decay: float = 0.0
    clipping: str | Mapping[str, str] = "all-layer"
    clip: str = "automatic"
    thresholds: float | Adaptive = 1.0
    average: str = "none"
    views: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(f"epochs={self.epochs} and steps={self.steps}: give one of them")
        for name in ("epsilon", "epochs", "lr", "delta"):
            value = getattr(self, name)
            if value is not None:
                positive(name, value)
        for name in ("batch_size", "microbatch", "views"):
            whole(name, getattr(self, name), least=1)
        if self.steps is not None:
            whole("steps", self.steps, least=1)
        if self.average != "none":
            Averaging.named(self.average)
        for name, known in (("schedule", SCHEDULES), ("optimizer", OPTIMIZERS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown; use one of {', '.join(known)}")

    def steps_on(self, records: int) -> int:
        """Return how many steps are taken on ``records`` records: at least one, ``epochs * records / batch_size`` rounded."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, round(self.epochs * records / self.batch_size))

    def plan(self, records: int) -> Mechanism:
        """Return the plan on ``records`` records, without its noise. ValueError for a batch larger than the data."""
        return Mechanism(dataset_size=records, expected_batch_size=self.batch_size, steps=self.steps_on(records))

    def mechanism(self, records: int) -> Mechanism:
        """Return the plan, calibrated. ValueError without privacy."""
        if self.epsilon is None:
            raise ValueError("epsilon=None trains without privacy: there is no mechanism")
        return self.plan(records).calibrate(epsilon=self.epsilon, delta=self.delta)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values; what wasn't given (epochs or steps) is left out."""
        usual = {"average": "none", "views": 1}
        known = {name: value for name, value in asdict(self).items() if name not in usual or value != usual[name]}
        return {name: value for name, value in known.items() if value is not None or name == "epsilon"}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> TrainSettings:
        """Return the inverse of :meth:`to_dict`."""
        adaptive = facts.get("thresholds")
        given = dict(facts) if not isinstance(adaptive, Mapping) else {**facts, "thresholds": Adaptive(**adaptive)}
        return cls(**given)


@functools.cache
def _calibrate(plan: Mechanism, epsilon: float, delta: float) -> Mechanism:
    """Calibrate once for all cells with one plan: calibration takes as long as the training of a tiny cell."""
    return plan.calibrate(epsilon=epsilon, delta=delta)
