"""One run of the paper at full scale: what it is filed under, how it is trained, and how much noise it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from ..clipping.adaptive import Adaptive
from ..privacy.mechanism import Mechanism
from ..privacy.spent import default_delta
from .printed import printed_settings
from .settings import TrainSettings

EXPERIMENT = "paper"  # results of all tables lie together: a run that two of them ask for is made once
PLAIN = "none"  # the clipping of a run without privacy


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Holds what tells one run from all others. ``epsilon`` is None and ``clipping`` "none" without privacy."""

    model: str
    data: str
    epsilon: float | None
    clipping: str
    clip: str
    thresholds: str
    epochs: int
    seed: int = 0

    def key(self) -> Mapping[str, Any]:
        """Return what its result is filed under."""
        return asdict(self)

    def __str__(self) -> str:
        budget = "without privacy" if self.epsilon is None else f"epsilon {self.epsilon:g}, {self.clipping}"
        more = [word for word, usual in ((self.clip, "automatic"), (self.thresholds, "fixed")) if word != usual]
        return (
            f"{self.model} on {self.data}, {budget}" + "".join(f", {word}" for word in more) + f", {self.epochs} epochs"
        )

    @property
    def records(self) -> int:
        """The number of records in the real training set."""
        return printed_settings().of(self.data).records

    def settings(self, records: int | None = None) -> TrainSettings:
        """Return how it is trained, as printed. ``records``: of another training set than the real one; delta depends on them."""
        book = printed_settings()
        printed = book.of(self.data)
        threshold: float | Adaptive = book.abadi_threshold if self.clip == "abadi" else 1.0
        return TrainSettings(
            epsilon=self.epsilon,
            delta=default_delta(self.records if records is None else records),
            batch_size=printed.batch_size,
            lr=printed.learning_rate,
            epochs=self.epochs,
            microbatch=printed.microbatch,
            weight_decay=printed.weight_decay,
            clipping="all-layer" if self.clipping == PLAIN else self.clipping,
            clip=self.clip,
            thresholds=book.adaptive if self.thresholds == "adaptive" else threshold,
            seed=self.seed,
        )

    def mechanism(self) -> Mechanism | None:
        """Return the calibrated plan on the real training set; None without privacy. Cells with the same budget share it."""
        if self.epsilon is None:
            return None
        return calibrated(self.data, float(self.epsilon), self.epochs)


@cache
def calibrated(data: str, epsilon: float, epochs: int) -> Mechanism:
    """Return the plan of a data set of the paper, at its batch size and of its real size, with its noise."""
    return plan(data, epsilon, epochs).mechanism(printed_settings().of(data).records)


def plan(data: str, epsilon: float, epochs: int) -> TrainSettings:
    """Return what of the settings a budget depends on: delta, batch size and epochs."""
    printed = printed_settings().of(data)
    return TrainSettings(
        epsilon=epsilon,
        delta=default_delta(printed.records),
        batch_size=printed.batch_size,
        lr=printed.learning_rate,
        epochs=epochs,
    )
