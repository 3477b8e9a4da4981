"""The command that computes the figure of a statement again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from groupclip.statement.record import PrivacyRecord


def command(record: PrivacyRecord) -> str:
    """Write the command that computes the figure again."""
    plan = record.mechanism
    cap = f" --max-batch-size {plan.max_batch_size}" if plan.sampling == "truncated-poisson" else ""
    return (
        f"groupclip epsilon --dataset-size {plan.dataset_size} --batch-size {plan.expected_batch_size!r} --steps {record.steps} "
        f"--noise-multiplier {plan.noise_multiplier!r} --delta {record.delta!r} --sampling {plan.sampling}{cap} "
        f"--adjacency {plan.adjacency} --unit {plan.unit}"
        + (f" --bands {plan.bands} --rounds {record.rounds or plan.rounds(record.steps)}" if plan.bands != 1 else "")
    )
