"""What a check that found nothing wrong tells."""

from __future__ import annotations

from dataclasses import dataclass

from .coverage import ParameterUse, table


@dataclass(frozen=True)
class CheckReport:
    """Holds what was found right.

    Attributes:
        uses: the coverage table, one row a trainable parameter.
        replayed: the neighbouring batches that came out right.
        warnings: what is right and slow, or couldn't be seen.
    """

    uses: tuple[ParameterUse, ...]
    replayed: tuple[str, ...]
    warnings: tuple[str, ...]

    def table(self) -> str:
        """Write the coverage table as text: one row a trainable parameter."""
        return table(self.uses)

    def __str__(self) -> str:
        lines = [
            self.table(),
            "",
            *(f"right: {what}" for what in self.replayed),
            *(f"note: {w}" for w in self.warnings),
        ]
        return "\n".join(lines)
