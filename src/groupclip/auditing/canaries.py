"""The guessing game of a one-run audit: canaries in or out by fair coins, guesses fixed in number, a bound from the right ones."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..arguments import whole
from ..errors import PrivacyViolation
from .guesses import enough_canaries, guessed_share, guesses_epsilon
from .report import RunAudit

_MOST = 1_000_000  # canaries that anybody would train with


@dataclass(frozen=True, kw_only=True)
class CanaryAudit:
    """Audits any training procedure in one run (Steinke, Nasr and Jagielski 2023). Everything is fixed before the run.

    Draw :meth:`coins`; train with the canaries whose coin says so (each is a sample of the data set, or not); score every
    canary from what the run RELEASED, higher for "was in"; then :meth:`judge`, once. The coins are the run's secret: nothing that
    scores may look at them. Coins that were drawn otherwise are refused, and so is a second verdict on the same coins. To judge in
    another process, pickle this object with its coins.

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
    _drawn: list[Tensor] = field(default_factory=list, init=False, repr=False, compare=False)  # and not judged yet

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
        coins = torch.tensor([bool(bits >> i & 1) for i in range(self.canaries)])
        self._drawn.append(coins.clone())
        return coins

    @property
    def ceiling(self) -> float:
        """The bound if every guess is right: no run that is audited so can be shown to have more."""
        assert self.guesses is not None
        return guesses_epsilon(self.canaries, self.guesses, self.guesses, self.delta, self.confidence)

    def warn_if_idle(self, epsilon: float) -> None:
        """Say in the log that so few guesses can't show more than ``epsilon``, whatever the run does."""
        if self.ceiling <= epsilon:
            enough = enough_canaries(epsilon, self.delta, self.confidence, _MOST)
            advice = f"take {enough:,} canaries or more" if enough < _MOST else "no affordable number of canaries would do"
            logging.getLogger("groupclip").warning(
                "%s guesses can show epsilon %.3g at most, even if all are right, and %.3g is claimed: this audit can't find a "
                "violation (%s)", self.guesses, self.ceiling, epsilon, advice,
            )  # fmt: skip

    def judge(self, coins: Tensor, scores: Tensor, *, epsilon: float) -> RunAudit:
        """Return the bound from ``scores`` ``[m]``, beside the epsilon that the run claims at the same delta.

        Raises:
            ValueError: not one finite score a canary.
            PrivacyViolation: coins that :meth:`coins` didn't draw, or that were judged: the bound would hold for neither.
        """
        self.warn_if_idle(epsilon)
        return self.verdict(coins, scores, epsilon=epsilon)

    def verdict(self, coins: Tensor, scores: Tensor, *, epsilon: float) -> RunAudit:
        """Do :meth:`judge` without a warning.

        Args:
            coins, scores, epsilon: as there.

        Raises:
            ValueError, PrivacyViolation: as there.
        """
        if coins.shape != (self.canaries,) or scores.shape != (self.canaries,) or not torch.isfinite(scores).all():
            raise ValueError(
                f"coins of shape {tuple(coins.shape)} and scores of shape {tuple(scores.shape)}: one coin and one finite score "
                f"are needed for each of the {self.canaries} canaries"
            )
        drawn = [i for i, known in enumerate(self._drawn) if torch.equal(known, coins.cpu())]
        if not drawn:
            raise PrivacyViolation(
                "these coins were not drawn by this audit's coins(), or there was a verdict on them already. The bound is for "
                "canaries that are in or out by fair coins, each counted, and for guesses that were fixed before anybody looked at "
                "scores: other coins, or the best of several verdicts, can show any epsilon. Draw coins() anew and train again"
            )
        del self._drawn[drawn[0]]
        r = self.guesses or 0
        order = torch.argsort(scores)
        out, in_ = order[: r // 2], order[self.canaries - (r - r // 2) :]
        right = int((~coins[out]).sum() + coins[in_].sum())
        found = [guesses_epsilon(self.canaries, r, v, self.delta, self.confidence) for v in (right, r)]
        return RunAudit(
            canaries=self.canaries, guesses=r, right=right, delta=self.delta, confidence=self.confidence,
            epsilon_lower=found[0], epsilon_ceiling=found[1], epsilon_claimed=epsilon,
        )  # fmt: skip
