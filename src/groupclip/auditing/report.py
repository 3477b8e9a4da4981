"""What an audit found, in numbers and in words. It tells about made-up canaries, and about no sample of anybody's."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..privacy.mechanism import Mechanism
from .statistics import noticed_factor

ABOUT = "This audit's figures are about made-up canaries alone: no statistic of a private sample is in them."


@dataclass(frozen=True, kw_only=True)
class StepAudit:
    """Holds what an audit of one step found; see :func:`groupclip.audit`.

    Attributes:
        trials: steps taken on each of the two neighbouring batches.
        confidence: with which each lower bound holds.
        delta: at which figures in epsilon are.
        false_alarms, misses: errors of the rule, of ``trials`` steps without and with the canary.
        mu_claimed: that of the plan's step: 1 / noise multiplier (twice that for replace-one). An upper bound.
        mu_of_canary: distance of the two clipped sums over the planned noise: what infinitely many trials would show.
        mu_lower: lower bound on mu from the trials.
        mu_ceiling: the bound if no trial had been an error: no audit of so many trials can show more.
        epsilon_any_noise: lower bound on the step's epsilon at ``delta``, whatever the shape of its noise.
        steps: of the plan. groups: M. secure_noise: whether an epsilon could be claimed for the noise that was sampled.
    """

    trials: int
    confidence: float
    delta: float
    false_alarms: int
    misses: int
    mu_claimed: float
    mu_of_canary: float
    mu_lower: float
    mu_ceiling: float
    epsilon_any_noise: float
    steps: int
    groups: int
    secure_noise: bool

    @property
    def violates(self) -> bool:
        """The step is more revealing than the plan claims; wrongly said with probability 1 - confidence at most."""
        return self.mu_lower > self.mu_claimed

    @property
    def noticed_factor(self) -> float:
        """Noise that is too small by this factor would have been noticed, with probability 95 % at least; inf if none would."""
        return noticed_factor(self.mu_claimed, self.trials, self.confidence)

    @property
    def epsilon_claimed(self) -> float:
        """The epsilon claimed for one step on a batch that surely holds the sample."""
        return _gaussian_epsilon(self.mu_claimed, self.delta)

    @property
    def epsilon_lower(self) -> float:
        """A lower bound on the same, if the step's noise is Gaussian."""
        return _gaussian_epsilon(self.mu_lower, self.delta)

    @property
    def run_epsilon_claimed(self) -> float:
        """The epsilon claimed for all steps of the plan WITHOUT sampling: the sample is in every batch. It isn't the run's."""
        return _gaussian_epsilon(self.mu_claimed, self.delta, self.steps)

    @property
    def run_epsilon_lower(self) -> float:
        """A lower bound on the same: all steps are alike and Gaussian, and the canary is in each."""
        return _gaussian_epsilon(self.mu_lower, self.delta, self.steps)

    def __str__(self) -> str:
        sure, d = f"{100 * self.confidence:g} %", f"delta {self.delta:g}"
        verdict = (
            "VIOLATION: the step reveals more than the plan claims."
            if self.violates
            else "No violation found. That isn't a proof: see what could have been shown at most."
        )
        lines = [
            f"Step audit: {self.trials:,} steps with the canary and {self.trials:,} without, {self.groups} groups, "
            f"confidence {sure}",
            f"  mu            at least {self.mu_lower:.3f}, claimed at most {self.mu_claimed:.3f}; the canary's own "
            f"{self.mu_of_canary:.3f}; at most {self.mu_ceiling:.3f} could have been shown",
            f"  one step      epsilon at least {self.epsilon_lower:.3f}, claimed at most {self.epsilon_claimed:.3f} ({d}, the "
            "sample surely in the batch, Gaussian noise)",
            f"                epsilon at least {self.epsilon_any_noise:.3f} whatever the noise",
            "  power         " + self._power(),
        ]
        if self.steps > 1:
            lines.append(
                f"  {self.steps:,} steps".ljust(16)
                + f"epsilon at least {self.run_epsilon_lower:.3f}, claimed at most {self.run_epsilon_claimed:.3f} ({d}, the "
                "sample in EVERY batch: sampling isn't counted, so neither is the run's epsilon)"
            )
        lines.append(f"  {verdict}")
        if self.mu_of_canary < 0.99 * self.mu_claimed:
            lines.append(
                "  The canary's clipped gradient isn't as long as the thresholds allow in every group, so the audit sees less than "
                "it might: try another sample, or weights at which every group has a gradient."
            )
        if not self.secure_noise:
            lines.append(
                "  The noise that was sampled is reproducible from a seed: no epsilon can be claimed for it at all."
            )
        return "\n".join([*lines, f"  {ABOUT}"])

    def _power(self) -> str:
        if self.noticed_factor == math.inf:
            return "NONE: with so few trials no error in the noise would be noticed; take more"
        return f"noise too small by a factor of {self.noticed_factor:.2f} would be noticed with probability 95 %"


def _gaussian_epsilon(mu: float, delta: float, steps: int = 1) -> float:
    """Return epsilon of ``steps`` mu-Gaussian mechanisms, exactly."""
    if mu <= 0:
        return 0.0
    plan = Mechanism(dataset_size=1, expected_batch_size=1, steps=steps, noise_multiplier=1 / mu, sampling="full-batch")
    return plan.epsilon(delta=delta)


@dataclass(frozen=True, kw_only=True)
class RunAudit:
    """Holds what an audit of one whole run found; see :func:`groupclip.audit_run` and :class:`groupclip.CanaryAudit`.

    Attributes:
        canaries, guesses, right: m, r, and how many of the r guesses were right.
        delta, confidence: of the bounds.
        epsilon_lower: the run's epsilon at ``delta`` is at least this, with that confidence.
        epsilon_ceiling: the bound if every guess had been right: no audit of so many guesses can show more.
        epsilon_claimed: what the run claims at ``delta``.
    """

    canaries: int
    guesses: int
    right: int
    delta: float
    confidence: float
    epsilon_lower: float
    epsilon_ceiling: float
    epsilon_claimed: float

    @property
    def violates(self) -> bool:
        """The run is less private than it claims; wrongly said with probability 1 - confidence at most."""
        return self.epsilon_lower > self.epsilon_claimed

    def __str__(self) -> str:
        if self.violates:
            verdict = "VIOLATION: the run reveals more than it claims."
        elif self.epsilon_ceiling == 0 and 1 - self.confidence <= self.canaries * self.delta / self.guesses:
            most = 1 - self.canaries * self.delta / self.guesses
            verdict = f"No violation could have been found: at this delta a confidence of {most:g} or more shows nothing at all."
        elif self.epsilon_ceiling <= self.epsilon_claimed:
            verdict = "No violation could have been found: that would take more canaries and guesses."
        else:
            verdict = "No violation found. That isn't a proof: a canary audit misses noise that is a little too small."
        return "\n".join(
            [
                f"One-run audit: {self.canaries:,} canaries, in or out at random; {self.right} of {self.guesses} guesses right, "
                f"confidence {100 * self.confidence:g} %",
                f"  the run       epsilon at least {self.epsilon_lower:.3f}, claimed at most {self.epsilon_claimed:.3f} (delta "
                f"{self.delta:g}); at most {self.epsilon_ceiling:.3f} could have been shown",
                f"  {verdict}",
                f"  {ABOUT}",
            ]
        )
