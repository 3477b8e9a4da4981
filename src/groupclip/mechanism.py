"""The public facts of a private run, and the (epsilon, delta) that they give.

A :class:`Mechanism` is frozen: the object that calibrates the noise also builds the sampler, the noise and
the ledger, so they can't disagree. Its fields are public facts, never data.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real

from groupclip import accounting, calibration
from groupclip.errors import PrivacyViolation

ADJACENCIES = ("add-or-remove-one",)
_LEAST_SIGMA, _MOST_SIGMA = 1e-3, 1e9  # for a figure; a mechanism may have any


@dataclass(frozen=True, kw_only=True)
class PrivacySpent:
    """What has been spent: (epsilon, delta), and which accountant says so.

    ``epsilon`` is the smaller of ``rdp`` and ``pld`` (both are upper bounds; None where one can't answer).
    ``accountant`` is "PLD", "RDP" or, before the first step, "none". ``note`` says what limited the figure.
    """

    epsilon: float
    delta: float
    steps: int
    accountant: str
    rdp: float | None = None
    pld: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """Poisson-sampled Gaussian steps: each sample enters each step's batch independently with
    ``sample_rate``.

    Args:
        dataset_size: number of samples n. Public: add-or-remove adjacency protects who is in, not how many.
        expected_batch_size: the mean B of the Poisson batch size, 0 < B <= n; q = B / n.
        steps: number of planned optimizer steps T, empty batches included.
        noise_multiplier: sigma: the noise on the sum of clipped gradients has standard deviation
            sigma * ||(R_1, ..., R_M)|| in every coordinate (the paper, "Clipping thresholds"). None: to be
            calibrated.
            0: no noise, for sanity runs; then there is no epsilon.
        adjacency: "add-or-remove-one": neighbouring data sets differ by one sample's presence.

    Guarantee: :meth:`epsilon` is an upper bound for the release of every noisy gradient, and so of the
    weights after every step.

    Raises:
        ValueError, TypeError: naming the argument, the value and the fix.

    >>> mechanism = Mechanism(dataset_size=50_000, expected_batch_size=1_000, steps=250, noise_multiplier=1.0)
    >>> mechanism.sample_rate
    0.02
    """

    dataset_size: int
    expected_batch_size: int | float
    steps: int
    noise_multiplier: float | None = None
    adjacency: str = "add-or-remove-one"

    def __post_init__(self) -> None:
        n = _whole("dataset_size", self.dataset_size, least=1)
        batch = _number("expected_batch_size", self.expected_batch_size)
        if batch <= 0:
            raise ValueError(f"expected_batch_size={self.expected_batch_size!r} must be > 0")
        if batch > n:
            raise ValueError(
                f"expected_batch_size={self.expected_batch_size!r} is larger than dataset_size={n}: a batch "
                "can't hold more samples than there are; use at most dataset_size"
            )
        steps = _whole("steps", self.steps, least=1)
        sigma = self.noise_multiplier
        if sigma is not None:
            sigma = _number("noise_multiplier", sigma)
            if sigma < 0:
                raise ValueError(f"noise_multiplier={self.noise_multiplier!r} must be >= 0")
        if self.adjacency not in ADJACENCIES:
            raise ValueError(f"adjacency={self.adjacency!r} is unknown; use one of {', '.join(ADJACENCIES)}")
        # one spelling for one plan, so that 1_000, 1000.0 and numpy.int64(1000) have the same hash
        object.__setattr__(self, "dataset_size", n)
        object.__setattr__(self, "expected_batch_size", int(batch) if batch == int(batch) else batch)
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "noise_multiplier", sigma)

    @property
    def sample_rate(self) -> float:
        """q = expected_batch_size / dataset_size: what the sampler compares with and the accountants use."""
        return self.expected_batch_size / self.dataset_size

    def epsilon(self, *, delta: float, steps: int | None = None) -> float:
        """Epsilon at ``delta`` after ``steps`` steps (all by default): see :meth:`spent`."""
        return self.spent(delta=delta, steps=steps).epsilon

    def spent(self, *, delta: float, steps: int | None = None) -> PrivacySpent:
        """Epsilon at ``delta`` after ``steps`` of the planned steps, with both accountants' figures.

        Raises:
            ValueError: delta outside [1e-12, 1), steps outside [0, self.steps], no noise_multiplier yet, or
                so little noise that no accountant gives a finite figure.
            PrivacyViolation: noise_multiplier is 0.
        """
        delta = _delta(delta)
        steps, sigma = self._taken(steps), self._sigma()
        if steps == 0:
            return PrivacySpent(epsilon=0.0, delta=delta, steps=0, accountant="none", rdp=0.0, pld=0.0)
        bounds = accounting.epsilon_bounds(self.sample_rate, sigma, steps, delta, self.steps)
        if bounds.value is None:
            raise ValueError(_too_little_noise(sigma))
        return PrivacySpent(
            epsilon=bounds.value,
            delta=delta,
            steps=steps,
            accountant=bounds.accountant,
            rdp=bounds.rdp,
            pld=bounds.pld,
            note=bounds.note,
        )

    def delta(self, *, epsilon: float, steps: int | None = None) -> float:
        """The smallest proven delta at ``epsilon`` >= 0 after ``steps`` steps (all by default)."""
        epsilon = _number("epsilon", epsilon)
        if epsilon < 0:
            raise ValueError(f"epsilon={epsilon!r} must be >= 0")
        steps, sigma = self._taken(steps), self._sigma()
        if steps == 0:
            return 0.0
        bound = accounting.delta_bounds(self.sample_rate, sigma, steps, epsilon, self.steps).value
        if bound is None:
            raise ValueError(_too_little_noise(sigma))
        # a Gaussian never gives delta = 0: don't let underflow claim it
        return min(max(bound, 1e-300), 1.0)

    def calibrate(self, *, epsilon: float, delta: float) -> "Mechanism":
        """The same plan with the least noise found for which 0.99 * epsilon <= epsilon(delta) <= epsilon.

        Raises:
            ValueError: the target can't be met with a noise multiplier between 0.02 and 1e6.
        """
        target, delta = _number("epsilon", epsilon), _delta(delta)
        if target <= 0:
            raise ValueError(f"epsilon={epsilon!r} must be > 0")

        def reported(sigma: float) -> float:
            bounds = accounting.epsilon_bounds(self.sample_rate, sigma, self.steps, delta, self.steps)
            return math.inf if bounds.value is None else bounds.value

        def quick(sigma: float) -> float:
            bound = accounting.quick_epsilon(self.sample_rate, sigma, self.steps, delta)
            return math.inf if bound is None else bound

        enough = calibration.enough_noise(quick, target)
        return replace(self, noise_multiplier=calibration.least_noise(reported, enough, target))

    @property
    def plan_hash(self) -> str:
        """SHA-256 of the canonical JSON of every field: equal exactly when the plans are."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def to_dict(self) -> dict[str, int | float | str | None]:
        """Every field, JSON-able."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, facts: Mapping[str, object]) -> "Mechanism":
        """The inverse of :meth:`to_dict`; ValueError on an unknown or a missing key."""
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(facts) - set(known))
        missing = [name for name in ("dataset_size", "expected_batch_size", "steps") if name not in facts]
        if unknown or missing:
            raise ValueError(
                f"not the facts of a mechanism: unknown {unknown}, missing {missing}; the keys are "
                f"{', '.join(known)}"
            )
        return cls(**facts)  # type: ignore[arg-type]

    def _taken(self, steps: int | None) -> int:
        if steps is None:
            return self.steps
        steps = _whole("steps", steps, least=0)
        if steps > self.steps:
            raise ValueError(
                f"steps={steps} is past the plan of {self.steps} steps that the noise was calibrated for; "
                "plan that many steps in a new Mechanism"
            )
        return steps

    def _sigma(self) -> float:
        if self.noise_multiplier is None:
            raise ValueError(
                "noise_multiplier is None: the mechanism has no noise yet; use "
                "mechanism.calibrate(epsilon=, delta=) or pass noise_multiplier="
            )
        if self.noise_multiplier == 0:
            raise PrivacyViolation(
                "noise_multiplier=0: the run adds no noise, so it isn't private and no epsilon is finite; "
                "use mechanism.calibrate(epsilon=, delta=)"
            )
        if not _LEAST_SIGMA <= self.noise_multiplier <= _MOST_SIGMA:
            raise ValueError(
                f"noise_multiplier={self.noise_multiplier:g} is outside [{_LEAST_SIGMA:g}, {_MOST_SIGMA:g}], where the "
                "accountants' arithmetic holds; use mechanism.calibrate(epsilon=, delta=)"
            )
        return self.noise_multiplier


def default_delta(dataset_size: int) -> float:
    """min(1e-5, 1 / (2n)): the delta to use when none is asked for.

    Publishing one record picked at random satisfies (0, 1/n), so delta has to be below 1/n to mean anything;
    1/(2n) is the field's custom for fine-tuning (and 1e-5 at the paper's n = 50,000). For small n that alone
    would be far too lax, so it is never above 1e-5. Choose a smaller one where a failure would be a
    catastrophe.
    """
    return max(min(1e-5, 1 / (2 * _whole("dataset_size", dataset_size, least=1))), accounting.SMALLEST_DELTA)


def _delta(delta: float) -> float:
    delta = _number("delta", delta)
    if not accounting.SMALLEST_DELTA <= delta < 1:
        raise ValueError(
            f"delta={delta!r} must be in [{accounting.SMALLEST_DELTA:g}, 1): the accountants' double "
            "precision ends there; groupclip.mechanism.default_delta(dataset_size) is a usual choice"
        )
    return delta


def _too_little_noise(sigma: float) -> str:
    return (
        f"noise_multiplier={sigma:g} is so little noise that no accountant gives a finite figure; use "
        "mechanism.calibrate(epsilon=, delta=), which gives the noise that an epsilon needs"
    )


def _whole(name: str, value: object, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name}={value!r} must be a whole number (int), not {type(value).__name__}")
    if int(value) < least:
        raise ValueError(f"{name}={value!r} must be >= {least}")
    if int(value) > 2**53:
        raise ValueError(f"{name}={value!r} is larger than 2**53, where a double stops counting; check the number")
    return int(value)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={value!r} must be a number, not {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError(f"{name}={value!r} must be finite")
    return float(value)
