"""Thresholds that follow a quantile of the gradient norms, learnt by a release that the plan pays for.

Per group m and step (Andrew et al. 2021, algorithm 1; per layer in He et al. 2022, section 3.3):

    count_m   = sum_i c_im + N(0, sigma_b^2),  c_im = 1/2 if 0 < ||g_i^(m)|| <= R_m, -1/2 if it is larger, 0 if it is 0
    fraction_m = count_m / E[batch size] + 1/2
    R_m      <- R_m exp(-rate (fraction_m - quantile))

What it costs. A sample adds at most 1/2 in absolute value to each of the M counts, so sqrt(M) / 2 to the vector of
counts, over the SAME sampled batch whose gradients are summed. So both are one release of a vector, whose parts are
divided by their noise (:mod:`groupclip.privacy.allocation`):

    sigma^-2 = z^-2 + M (2 sigma_b)^-2,     z the noise multiplier of the gradients.

With a share r of the budget for counts: ``z = sigma / sqrt(1 - r)`` and ``sigma_b = sigma sqrt(M) / (2 sqrt(r))``. Under
replace-one a sample moves counts by 1 and gradients by 2 R_m: both twice as far, which the accountant's doubled
sensitivity covers, so the identity holds under every adjacency. (The constant 1/2 needs the counts to be centred: with
indicators in {0, 1} a sample adds up to 1, and sigma_b has to be twice as large.) Accounting the two as separate sampled
events would report too little: they use the same sample.

``c_im = 0`` for a zero gradient, so that a sample's count depends on that sample alone, also where a group takes part in
a micro-batch only because another sample uses it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from groupclip.arguments import number
from groupclip.noise.sources import NoiseSource
from groupclip.privacy.thresholds import Thresholds

RELEASE = "counts of gradients within their threshold, one a group"
_RANGE = 1e6  # thresholds stay within this factor of where they began: noise alone can't drive them to 0 or infinity


@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """Follows a quantile of the norms. Its facts are public and fixed before training.

    Args:
        start: the first thresholds, as for fixed ones.
        quantile: the share of gradients that should be within their threshold, in (0, 1).
        rate: of the geometric update.
        share: r, the part of the budget 1/sigma^2 that the counts use, in (0, 1). At 0.01 the gradients get 0.5 % more
            noise; the counts' noise is then 5 sigma sqrt(M).

    Raises:
        ValueError, TypeError: naming the argument.
    """

    start: Thresholds = 1.0
    quantile: float = 0.5
    rate: float = 0.2
    share: float = 0.01

    def __post_init__(self) -> None:
        for name in ("quantile", "share"):
            if not 0 < number(name, getattr(self, name)) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r} must be in (0, 1)")
        if not 0 < number("rate", self.rate) <= 10:
            raise ValueError(f"rate={self.rate!r} must be in (0, 10]")

    def gradient_multiplier(self, sigma: float) -> float:
        """Return z, the noise multiplier of the gradients, for a plan whose whole is ``sigma``."""
        return sigma / math.sqrt(1 - self.share)

    def count_std(self, sigma: float, groups: int) -> float:
        """Return sigma_b, the standard deviation of the noise on each count of M ``groups``, at noise multiplier ``sigma``."""
        return sigma * math.sqrt(groups) / (2 * math.sqrt(self.share))

    def release(self, sigma: float) -> dict[str, float]:
        """Return what a privacy record lists: the counts together, and their noise multiplier."""
        return {RELEASE: sigma / math.sqrt(self.share)}


class Counts:
    """The counts of one logical batch, secret until :meth:`release`; and the thresholds that they move.

    Args:
        facts: quantile, rate and share.
        thresholds: R_m by group, the first ones.
    """

    def __init__(self, facts: Adaptive, thresholds: Mapping[str, float]) -> None:
        self.facts = facts
        self._first = dict(thresholds)
        self.thresholds = dict(thresholds)
        self._counts = dict.fromkeys(thresholds, 0.0)

    def saw(self, group: str, norms: Tensor) -> None:
        """Take the norms ``[B]`` of one micro-batch of the group's per-sample gradients."""
        self._counts[group] += float(centred(norms, self.thresholds[group]).sum())

    def now(self) -> dict[str, float]:
        """Return the counts so far. Secret."""
        return dict(self._counts)

    def back_to(self, counts: Mapping[str, float]) -> None:
        """Undo what was seen since :meth:`now` gave ``counts``."""
        self._counts = dict(counts)

    def discard(self) -> None:
        """Forget the logical batch under way."""
        self.back_to(dict.fromkeys(self._counts, 0.0))

    def release(self, noise: NoiseSource, sigma: float, expected_batch_size: float) -> dict[str, float]:
        """Return the thresholds of the next step. Adds the noise, so the released counts are private; call it once a step."""
        noisy = torch.tensor(list(self._counts.values()), dtype=torch.float64)
        self.discard()
        noise.add_(noisy, self.facts.count_std(sigma, len(noisy)))
        for (group, old), count in zip(self.thresholds.items(), noisy.tolist(), strict=True):
            first = self._first[group]
            moved = updated(old, count / expected_batch_size + 0.5, self.facts)
            self.thresholds[group] = min(max(moved, first / _RANGE), first * _RANGE)
        return dict(self.thresholds)

    def load(self, thresholds: Mapping[str, float]) -> None:
        """Go on with the thresholds of a saved run."""
        if set(thresholds) != set(self.thresholds) or not all(0 < bound < math.inf for bound in thresholds.values()):
            raise ValueError(
                f"the saved thresholds {dict(thresholds)} must be positive, of the groups {list(self.thresholds)}"
            )
        self.thresholds = {group: float(thresholds[group]) for group in self.thresholds}


def centred(norms: Tensor, threshold: float) -> Tensor:
    """c_i of every sample, ``[B]``: in {-1/2, 0, 1/2}, a function of that sample's norm alone. 0 if it isn't finite."""
    within = torch.where(norms <= threshold, 0.5, -0.5)
    return torch.where(torch.isfinite(norms) & (norms > 0), within, 0.0)


def updated(threshold: float, fraction: float, facts: Adaptive) -> float:
    """Return the geometric update; the exponent is bounded, for a noisy fraction may lie far outside [0, 1]."""
    return threshold * math.exp(-facts.rate * min(max(fraction - facts.quantile, -10.0), 10.0))
