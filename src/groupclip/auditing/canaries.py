"""The guessing game of a one-run audit: canaries in or out by fair coins, guesses fixed in number, a bound from the right ones."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import torch
from torch import Tensor

from ..arguments import whole
from .guesses import guessed_share, guesses_epsilon
from .report import RunAudit


@dataclass(frozen=True, kw_only=True)
class CanaryAudit:
    """Audits any training procedure in one run (Steinke, Nasr and Jagielski 2023). Everything is fixed before the run.

    Draw :meth:`coins`; train with the canaries whose coin says so (each is a sample of the data set, or not); score every
    canary from what the run RELEASED, higher for "was in"; then :meth:`judge`. The coins are the run's secret: nothing that
    scores may look at them.

    Args:
        canaries: m. Made-up samples, so that nobody's privacy is at stake.
        guesses: r; the attacker takes the r/2 highest scores for "in", the r/2 lowest for "out", and abstains on the
            others. 20 % of m by default.
        delta: of the bound.
        confidence: probability with which the bound holds at least.

    Raises:
        ValueError: more guesses than canaries; delta or confidence outside [0, 1) and [0.5, 1).
    """

    canaries: int
    guesses: int | None = None
    delta: float = 1e-5
    confidence: float = 0.95

    def __post_init__(self) -> None:
        m = whole("canaries", self.canaries, least=2)
        r = guessed_share(m) if self.guesses is None else whole("guesses", self.guesses, least=2)
        if r > m:
            raise ValueError(f"guesses={r} is more than the {m} canaries; use at most that many")
        if not 0 <= self.delta < 1:
            raise ValueError(f"delta={self.delta!r} must be in [0, 1)")
        if not 0.5 <= self.confidence < 1:
            raise ValueError(f"confidence={self.confidence!r} must be in [0.5, 1)")
        object.__setattr__(self, "guesses", r)

    def coins(self) -> Tensor:
        """Return ``[m]`` bool, fair, from the operating system: True for a canary that is in."""
        bits = secrets.randbits(self.canaries)
        return torch.tensor([bool(bits >> i & 1) for i in range(self.canaries)])

    def judge(self, coins: Tensor, scores: Tensor, *, epsilon: float) -> RunAudit:
        """Return the bound from ``scores`` ``[m]``, beside the epsilon that the run claims at the same delta.

        Raises:
            ValueError: not one finite score a canary.
        """
        if coins.shape != (self.canaries,) or scores.shape != (self.canaries,) or not torch.isfinite(scores).all():
            raise ValueError(
                f"coins of shape {tuple(coins.shape)} and scores of shape {tuple(scores.shape)}: one coin and one finite score "
                f"are needed for each of the {self.canaries} canaries"
            )
        r = self.guesses or 0
        order = torch.argsort(scores)
        out, in_ = order[: r // 2], order[self.canaries - (r - r // 2) :]
        right = int((~coins[out]).sum() + coins[in_].sum())
        found = [guesses_epsilon(self.canaries, r, v, self.delta, self.confidence) for v in (right, r)]
        return RunAudit(
            canaries=self.canaries, guesses=r, right=right, delta=self.delta, confidence=self.confidence,
            epsilon_lower=found[0], epsilon_ceiling=found[1], epsilon_claimed=epsilon,
        )  # fmt: skip
