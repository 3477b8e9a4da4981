"""What a statement tells of noise that steps share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from groupclip.statement.record import PrivacyRecord


def correlated(record: PrivacyRecord) -> str:
    """Tell of noise that steps share."""
    plan = record.mechanism
    rounds = plan.rounds(record.steps) if record.rounds is None else record.rounds
    anew = rounds - plan.rounds(record.steps)
    return (
        f"The noise of a step is correlated with that of the {plan.band_count - 1} steps before, so that a part of it cancels in "
        f"sums of gradients; one {plan.unit} takes part in one of {plan.band_count} steps in a row at most, and the "
        f"{record.steps:,} steps are accounted as {rounds:,} rounds with independent noise of that multiplier."
        + (f" {anew} of these rounds came on top, because the noise was begun anew when the run was resumed." if anew else "")
    )
