"""Theorem 1: with probability 1 - rho, how small the gradient gets in T steps of DP-SGD with group-wise automatic clipping.

Four forms of one bound, which do not agree:

* :func:`dp_sgd`: the proof's inequality "for any r > 1, a > 0", with the best r by numbers. Valid at every T. Use this one.
* :func:`small_level`: what that tends to for T -> infinity: ``T^(-1/4) rho^(-1/2)``.
* :func:`proof_last_line`: the appendix's last line. Its powers are right; its constant isn't the limit (too small by up to 1.30
  where xi / sqrt(M) >> gamma, too large by up to 2 where it is << gamma).
* :func:`theorem_as_printed`, with ``rho T`` under the fourth root, that is ``rho^(-1/4)``, and :func:`headline`, ``rho^(-3/2)``
  as the O() of the theorem says: the proof has neither. As T grows and for small rho, the first is smaller than anything that
  is proved, the second needlessly large.

At finite T the asymptotes lie on either side of what is proved: below it where the level a is large beside gamma and xi small,
above it where xi is large. They are kept for comparison with the paper.

``max_t P(||g_t|| < b) >= 1 - rho`` speaks of one step t in 0 .. T-1, the best one, which nobody knows; and of the learning
rate of :attr:`Setting.learning_rate`, whose constants nobody knows either. It explains; it doesn't certify a run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..arguments import number, positive, whole
from .distance import GAMMA, least_norm, small_level_constant


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Holds what the bounds depend on beside the number of groups.

    Args:
        steps: T.
        batch_size: B, the expected number of samples of a step.
        noise_multiplier: sigma; the noise on the sum of clipped gradients has this standard deviation, as R = 1.
        parameters: d, the trainable coordinates of all groups.
        gap: L_0 - L_*, the loss at the start above its infimum.
        smoothness: the constant of the paper's assumption "Smoothness" (its script L).
        xi: root of the bound on the gradient noise: ``E ||g_i^(m) - g^(m)||^2 <= xi^2 / M`` in EVERY group. With groups that
            differ, ``xi = sqrt(M) max_m xi_m``, which grows as groups are cut apart unevenly.
        rho: the probability with which the bound may fail.
        gamma: of automatic clipping; the paper's 0.01.
        batch_size_variance: of the batch size. 0: the paper, whose batches have exactly B samples. ``B (1 - q)``: Poisson batches
            with rate q, for which the proof goes through with ``E[n^2] = B^2 + variance`` where it has ``B^2``.

    Raises:
        ValueError, TypeError: naming the argument.
    """

    steps: int
    batch_size: float
    noise_multiplier: float
    parameters: int
    gap: float
    smoothness: float
    xi: float
    rho: float = 0.1
    gamma: float = GAMMA
    batch_size_variance: float = 0.0

    def __post_init__(self) -> None:
        whole("steps", self.steps, least=1)
        whole("parameters", self.parameters, least=1)
        for name in ("batch_size", "gap", "smoothness", "gamma"):
            positive(name, getattr(self, name))
        for name in ("noise_multiplier", "xi", "batch_size_variance"):
            if number(name, getattr(self, name)) < 0:
                raise ValueError(f"{name}={getattr(self, name)!r} must be >= 0")
        if not 0 < number("rho", self.rho) < 1:
            raise ValueError(f"rho={self.rho!r} must be in (0, 1): the probability with which the bound may fail")

    @property
    def noise_factor(self) -> float:
        """``1 + sigma^2 d / B^2``, plus ``Var(batch size) / B^2``: the second moment of a step, in units of B^2."""
        return 1 + (self.noise_multiplier**2 * self.parameters + self.batch_size_variance) / self.batch_size**2

    @property
    def learning_rate(self) -> float:
        """``eta B = eta_0 / sqrt(T)`` with the best eta_0: torch's rate under groupclip, whose gradient is the noisy sum / B."""
        return math.sqrt(2 * self.gap / (self.smoothness * self.noise_factor * self.steps))

    @property
    def trivial(self) -> float:
        """``sqrt(2 L gap)``: the norm of any smooth loss's gradient at the START is at most this. A bound above it says nothing."""
        return math.sqrt(2 * self.smoothness * self.gap)


@dataclass(frozen=True)
class Bound:
    """``norm``: of the gradient, with probability 1 - rho at the best step. ``level``: the proof's a. ``r``: the best r."""

    norm: float
    level: float
    r: float


def dp_sgd(setting: Setting, groups: int) -> Bound:
    """Return ``min over r of sqrt(M) M^-1(a; r) + xi / r`` at the a that makes the proof's probability 1 - rho. Valid at every T.

    Appendix, proof for DP-SGD, eq. "high prob inequality 1".
    """
    level = _level(setting, groups)
    norm, r = least_norm(level, xi=setting.xi, gamma=setting.gamma, groups=groups)
    return Bound(norm, level, r)


def small_level(setting: Setting, groups: int) -> float:
    """Return the limit of :func:`dp_sgd` for T -> infinity, to the leading power: ``c sqrt(a)``, ``a ~ 1 / (rho sqrt(T))``.

    The paper's last line as it should be. Not an upper bound at finite T by itself.
    """
    constant = small_level_constant(xi=setting.xi, gamma=setting.gamma, groups=groups)
    return constant * math.sqrt(_level(setting, groups))


def proof_last_line(setting: Setting, groups: int) -> float:
    """Return the appendix's last line without its remainder: ``rho^(-1/2)``.

    ``2 (xi + gamma sqrt(M)) sqrt( sqrt(M) / (rho gamma) sqrt(2 gap L (1 + sigma^2 d / B^2) / T) )``. With gamma = 0.01 this is
    ``(20 xi + sqrt(M)/5) (2 M gap L (1 + sigma^2 d / B^2) / (rho^2 T))^(1/4)``. The constant is off: see
    :func:`groupclip.theory.small_level_constant`.
    """
    scale = 2 * (setting.xi + setting.gamma * math.sqrt(groups)) / math.sqrt(setting.gamma)
    return scale * _root(setting, groups) / setting.rho**0.5


def theorem_as_printed(setting: Setting, groups: int) -> float:
    """Theorem 1 as printed, ``rho T`` under the fourth root: ``rho^(-1/4)``. Not proved: too small for small rho.

    The print has gamma = 0.01 put in; here any gamma, which the print's constants 20 and 1/5 stand for.
    """
    return proof_last_line(setting, groups) * setting.rho**0.25


def headline(setting: Setting, groups: int) -> float:
    """Return the theorem's O(rho^(-3/2) T^(-1/4)) with its constants. It isn't proved; it exceeds the right limit for rho < 0.76.

    The power -3/2 belongs to the proof's remainder, ``O(rho^(-3/2) T^(-3/4))``.
    """
    return proof_last_line(setting, groups) / setting.rho


def sgd(setting: Setting) -> float:
    """Theorem 1 for SGD without privacy: ``sqrt(2 gap L + xi^2 / B) / (rho T^(1/4))``, at the rate ``1 / (L sqrt(T))``.

    Follows as printed (the appendix's xi^2 / (LB) in a group is a slip for xi^2 / (MB)). It uses neither sigma, d nor gamma.
    """
    return sgd_from_squares(setting) / math.sqrt(setting.rho)


def sgd_from_squares(setting: Setting) -> float:
    """Return the same with Markov's inequality on ``||g||^2`` in place of ``||g||``: ``rho^(-1/2)``, always smaller, same proof.

    Compared with :func:`sgd`, DP-SGD's bound looks better in rho than SGD's; that is the proofs' doing, not the algorithms'.
    """
    inner = 2 * setting.gap * setting.smoothness + setting.xi**2 / setting.batch_size
    return math.sqrt(inner / setting.rho) / setting.steps**0.25


def _root(setting: Setting, groups: int) -> float:
    """Return ``(2 M gap L (1 + sigma^2 d / B^2) / T)^(1/4)``."""
    whole("groups", groups, least=1)
    return (2 * groups * setting.gap * setting.smoothness * setting.noise_factor / setting.steps) ** 0.25


def _level(setting: Setting, groups: int) -> float:
    """Return the proof's a: ``rho = 2 sqrt(M) / (a sqrt(T)) sqrt(2 gap L (1 + sigma^2 d / B^2))``, solved for a."""
    return 2 / setting.rho * _root(setting, groups) ** 2
