"""Steps that were released on the same weights before: what a statement has to tell of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .ledger import Ledger
from .mechanism import Mechanism

numbers = itertools.count(1)  # of the engines of this process


@dataclass(frozen=True, kw_only=True)
class EarlierTraining:
    """Steps that another engine released on these weights.

    Args:
        mechanism: its plan.
        steps: how many.
        obstacle: why no epsilon is claimed for them; empty where one is.
        changed: the weights were given other values since, which may or may not know of them.
        number: of the engine, in this process; negative for one of another process, whose state was loaded.
        rounds: what the steps amount to; the plan's own by default.
        entry: of a budget, that they were charged to; empty without one, and for those of another process.
    """

    mechanism: Mechanism
    steps: int
    obstacle: str = ""
    changed: bool = False
    number: int = 0
    rounds: int | None = None
    entry: str = ""

    def epsilon(self, delta: float) -> float | None:
        """Return what they spent at ``delta``; None where nothing is claimed."""
        return None if self.obstacle else self.mechanism.spent(delta=delta, steps=self.steps, rounds=self.rounds).epsilon

    def carried_by(self, ledger: Ledger) -> bool:
        """Return whether a ledger that loaded a saved state counts these steps itself."""
        return self.mechanism == ledger.mechanism and self.steps <= ledger.steps

    def to_dict(self) -> dict[str, Any]:
        return {
            "mechanism": self.mechanism.to_dict(),
            "steps": self.steps,
            "obstacle": self.obstacle,
            "changed": self.changed,
            **({} if self.rounds is None else {"rounds": self.rounds}),
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> EarlierTraining:
        return cls(
            mechanism=Mechanism.from_dict(saved["mechanism"]),
            steps=int(saved["steps"]),
            obstacle=str(saved["obstacle"]),
            changed=bool(saved["changed"]),
            number=-next(numbers),
            rounds=None if saved.get("rounds") is None else int(saved["rounds"]),
        )
