"""What a run's budget held when its record was made: every training and release that is entered in it, as one figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from groupclip.arguments import number, positive, whole
from groupclip.privacy.budget import Budget
from groupclip.privacy.figures import figure


@dataclass(frozen=True, kw_only=True)
class DrawnBudget:
    """Holds what all entries of a budget had spent together, the run's own among them; it may be published.

    Args:
        epsilon: of all steps that were taken and all releases, at ``delta``.
        delta: the budget's.
        entries: how many trainings, searches and releases are entered.

    Raises:
        ValueError, TypeError: naming the argument.
    """

    epsilon: float
    delta: float
    entries: int

    def __post_init__(self) -> None:
        if number("budget.epsilon", self.epsilon) < 0:
            raise ValueError(f"budget.epsilon={self.epsilon!r} must be >= 0")
        if positive("budget.delta", self.delta) >= 1:
            raise ValueError(f"budget.delta={self.delta!r} must be in (0, 1)")
        whole("budget.entries", self.entries, least=1)

    @property
    def others(self) -> int:
        """The number of entries that aren't the run's own."""
        return self.entries - 1

    def to_dict(self) -> dict[str, Any]:
        """Return every field, JSON-able."""
        return asdict(self)

    @classmethod
    def of(cls, budget: Budget | None) -> DrawnBudget | None:
        """Return what a budget holds now; None without one. Raises what :meth:`groupclip.Budget.spent` raises."""
        if budget is None:
            return None
        spent, entries = budget.spent_by_entries()
        return cls(epsilon=spent.epsilon, delta=spent.delta, entries=entries)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> DrawnBudget:
        """Return the inverse of :meth:`to_dict`. TypeError for a wrong or missing key."""
        return cls(**facts)

    def told(self) -> str:
        """Say what the budget held."""
        spent = f"epsilon = {figure(self.epsilon)} at delta = {self.delta:g}"
        if not self.others:
            return f"It draws on a budget in which nothing else was entered when this was written; the budget had spent {spent}"
        entries = f"{self.others:,} other {'entry' if self.others == 1 else 'entries'}"
        return f"It draws on a budget with {entries}; when this was written, all of them together had spent {spent}"

    def contradicts(self, search: str) -> str:
        """Say that other entries may be a search, where whoever trained tells of none; empty where nothing contradicts it."""
        if search != "none" or not self.others:
            return ""
        count = "1 other entry" if self.others == 1 else f"{self.others:,} other entries"
        return (
            f"But the budget of this run has {count}: if a setting was chosen by a training among them, there was a search, and "
            "what the whole budget spends is the figure to go by."
        )
