"""What is spent, under the names of an accountant of Opacus."""

from __future__ import annotations

from ...engine.engine import Engine
from ...errors import PrivacyViolation

#: Opacus's names -> the accountant whose figure is told. "prv" is the smaller of two upper bounds, PLD and RDP.
FIGURES = {"prv": None, "rdp": "RDP"}


class Accountant:
    """Reads the ledger of one private training.

    Args:
        name: "prv" or "rdp".

    Raises:
        ValueError: "gdp", or a name that Opacus doesn't have.
    """

    def __init__(self, name: str) -> None:
        if name == "gdp":
            raise ValueError(
                "accountant='gdp' is an approximation by a central limit theorem, which can be far below the true epsilon: write "
                "accountant='prv' or 'rdp', which are upper bounds"
            )
        if name not in FIGURES:
            raise ValueError(f"accountant={name!r} is unknown; use one of {', '.join(FIGURES)}")
        self._name = name
        self.engine: Engine | None = None

    def mechanism(self) -> str:
        """Return its name."""
        return self._name

    def __len__(self) -> int:
        """Return the number of steps that were released."""
        return 0 if self.engine is None or self.engine.ledger is None else self.engine.ledger.steps

    @property
    def history(self) -> list[tuple[float, float, int]]:
        """What was released, as noise multiplier, sample rate and number of steps; empty before the first step."""
        if self.engine is None or self.engine.ledger is None or not len(self):
            return []
        plan = self.engine.ledger.mechanism
        assert plan.noise_multiplier is not None
        return [(plan.noise_multiplier, plan.sample_rate, len(self))]

    def get_epsilon(self, delta: float) -> float:
        """Return the epsilon of the steps so far at ``delta``; 0 before the first.

        Raises:
            PrivacyViolation: no epsilon holds: no noise was added, or steps weren't on whole batches of the private loader. Or
                make_private wasn't called.
        """
        if self.engine is None or self.engine.ledger is None:
            raise PrivacyViolation("nothing was made private by this PrivacyEngine yet: call make_private first")
        ledger = self.engine.ledger
        if FIGURES[self._name] is None or not ledger.steps or ledger.obstacle:
            return self.engine.epsilon(delta=delta)
        return ledger.mechanism.spent(delta=delta, steps=ledger.steps, rounds=ledger.rounds, accountant=FIGURES[self._name]).epsilon
