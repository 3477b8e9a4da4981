"""Steps of a budget that were set aside for one training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from groupclip.privacy.budget import Budget
    from groupclip.privacy.mechanism import Mechanism


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Reservation:
    """Holds what was set aside: :meth:`charge` one step before it is taken.

    Args:
        name: of the entry.
        lasts: the training goes on in rounds, each with a ledger that begins where the entry stands, and the rest stays set aside
            between them.
        before: sampler -> number of steps that were charged already, where it lasts.
        begun: how many there were when their correlated noise was begun: :mod:`groupclip.privacy.stretches`.
    """

    budget: Budget
    name: str
    mechanism: Mechanism
    lasts: bool = False
    before: Mapping[str, int] = field(default_factory=dict)
    begun: tuple[int, ...] = ()

    def charge(self, sampling: str, *, anew: bool = False) -> int:
        """Charge one step: :meth:`Budget.charge`."""
        return self.budget.charge(self.name, sampling=sampling, anew=anew)

    def close(self) -> None:
        """Free the rest, unless it lasts: then :meth:`Budget.close` does."""
        if not self.lasts:
            self.budget.close(self.name)
