"""The public facts of a private run, and the (epsilon, delta) that they give.

A :class:`Mechanism` is frozen: the object that calibrates the noise also builds the sampler, the noise and
the ledger, so they can't disagree. Its fields are public facts, never data.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from groupclip.arguments import number, positive, whole
from groupclip.errors import PrivacyViolation
from groupclip.privacy import accounting
from groupclip.privacy.bands import best_bands
from groupclip.privacy.calibration import least_for
from groupclip.privacy.planned import AUTO, cap_of, checked_bands
from groupclip.privacy.sampled_step import Step, check_accountant, check_combination, check_samples, with_samples
from groupclip.privacy.spent import PrivacySpent, checked_delta, no_figure, spent_by

UNITS = ("sample", "user", "client")
#: Up to here figures were held against the truth, and come in seconds. RDP was seen below it from 1e14 steps on.
MOST_STEPS = 10**10
_LEAST_SIGMA, _MOST_SIGMA = 1e-3, 1e9  # for a figure; a mechanism may have any


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """Plans Gaussian steps on sampled batches, in public facts.

    Args:
        dataset_size: number of samples n (of users or clients where ``unit`` says so). Public: add-or-remove adjacency
            protects who is in, not how many.
        expected_batch_size: the mean B of the batch size, 0 < B <= n; q = B / n.
        steps: number of planned optimizer steps T, empty batches included; at most 10^10.
        noise_multiplier: sigma: the noise on the sum of clipped gradients has standard deviation
            sigma * ||(R_1, ..., R_M)|| in every coordinate (the paper, "Clipping thresholds"). None: to be
            calibrated.
            0: no noise, for sanity runs; then there is no epsilon.
        adjacency: what neighbouring data sets differ by. "add-or-remove-one": one sample's presence. "zero-out": one
            sample, replaced by one that adds nothing. "replace-one": one sample, replaced by any other; costs more.
        sampling: how batches are drawn. "poisson": each sample independently with probability q.
            "truncated-poisson": so, but at most ``max_batch_size`` of them, chosen uniformly, so that a batch fits
            one physical size. "without-replacement": exactly B of n, uniformly. "full-batch": all of them, B = n.
        max_batch_size: the cap of a truncated batch; B + 6.5 sqrt(B) by default, where truncation is as good as free.
            None for other samplings.
        unit: whom the guarantee protects. "user": batches are drawn, and gradients clipped, by user. "client": rounds are of
            clients, whose updates are clipped (:class:`groupclip.federated.PrivateAverage`).
        bands: b, over how many steps noise is correlated (:mod:`groupclip.privacy.toeplitz`). The data are dealt into b parts at
            random, and step t draws from part t mod b with probability b q. 1: independent noise, which is DP-SGD. "auto": what
            :meth:`calibrate` finds to leave the least noise on sums of gradients. More than 1 needs Poisson sampling and
            "zero-out".

    Guarantee: :meth:`epsilon` is an upper bound for the release of every noisy gradient, and so of the
    weights after every step.

    Raises:
        ValueError, TypeError: naming the argument, the value and the fix; also for a sampling that has no sound
            accountant under the adjacency.

    >>> mechanism = Mechanism(dataset_size=50_000, expected_batch_size=1_000, steps=250, noise_multiplier=1.0)
    >>> mechanism.sample_rate
    0.02
    """

    dataset_size: int
    expected_batch_size: int | float
    steps: int
    noise_multiplier: float | None = None
    adjacency: str = "add-or-remove-one"
    sampling: str = "poisson"
    max_batch_size: int | None = None
    unit: str = "sample"
    bands: int | str = 1

    def __post_init__(self) -> None:
        n = whole("dataset_size", self.dataset_size, least=1)
        batch = positive("expected_batch_size", self.expected_batch_size)
        if batch > n:
            raise ValueError(
                f"expected_batch_size={self.expected_batch_size!r} is larger than dataset_size={n}: a batch "
                "can't hold more samples than there are; use at most that many"
            )
        steps = whole("steps", self.steps, least=1)
        if steps > MOST_STEPS:
            raise ValueError(
                f"steps={self.steps!r} is more than {MOST_STEPS:,}: the accountants' rounding errors grow with the steps and "
                "aren't bounded beyond that, so epsilon could come out too small; plan fewer steps"
            )
        sigma = self.noise_multiplier
        if sigma is not None:
            sigma = number("noise_multiplier", sigma)
            if sigma < 0:
                raise ValueError(f"noise_multiplier={self.noise_multiplier!r} must be >= 0")
        check_combination(self.sampling, self.adjacency)
        if self.unit not in UNITS:
            raise ValueError(f"unit={self.unit!r} is unknown; use one of {', '.join(UNITS)}")
        # one spelling for one plan, so that 1_000, 1000.0 and numpy.int64(1000) have the same hash
        object.__setattr__(self, "dataset_size", n)
        object.__setattr__(self, "expected_batch_size", int(batch) if batch == int(batch) else batch)
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "noise_multiplier", sigma)
        object.__setattr__(self, "max_batch_size", cap_of(self.sampling, n, batch, self.max_batch_size))
        object.__setattr__(self, "bands", checked_bands(self.bands, self))
        if self.sampling == "full-batch" and batch != n:
            raise ValueError(
                f"expected_batch_size={self.expected_batch_size!r} must be dataset_size={n} with sampling='full-batch'"
            )
        if self.sampling == "without-replacement" and batch != int(batch):
            raise ValueError(
                f"expected_batch_size={self.expected_batch_size!r} must be whole with sampling='without-replacement': "
                "every batch has that size"
            )

    @property
    def sample_rate(self) -> float:
        """q = expected_batch_size / dataset_size: what the sampler compares with and the accountants use."""
        return self.expected_batch_size / self.dataset_size

    @property
    def part_rate(self) -> float:
        """The probability with which a step draws a sample of its part of the data; :attr:`sample_rate` with one band."""
        return self.band_count * self.expected_batch_size / self.dataset_size

    @property
    def band_count(self) -> int:
        """:attr:`bands`, a number. ValueError where they are still to be found."""
        if isinstance(self.bands, str):
            raise ValueError("bands='auto': how many they are is found by mechanism.calibrate(epsilon=, delta=), with the noise")
        return self.bands

    def rounds(self, steps: int | None = None) -> int:
        """Return the rounds of :attr:`step` that ``steps`` steps (all by default) amount to: a sample is in every b-th at most."""
        return -(-self._taken(steps) // self.band_count)

    @property
    def step(self) -> Step:
        """One step, or round of b steps, as the accountants see it. Needs a noise multiplier."""
        return self._step(self._sigma())

    def epsilon(self, *, delta: float, steps: int | None = None) -> float:
        """Return epsilon at ``delta`` after ``steps`` steps (all by default): see :meth:`spent`."""
        return self.spent(delta=delta, steps=steps).epsilon

    def spent(
        self, *, delta: float, steps: int | None = None, accountant: str | None = None, samples_per_user: int = 1,
        rounds: int | None = None,
    ) -> PrivacySpent:  # fmt: skip
        """Return epsilon at ``delta`` after ``steps`` of the planned steps, with every accountant's figure.

        Args:
            rounds: what the steps amounted to, where the noise was begun anew among them; :meth:`rounds` by default.
            accountant: "PLD", "RDP" or "exact": that one's figure alone, to compare with others'. By default the smallest.
            samples_per_user: the figure for a person with so many samples (users, where ``unit`` is "user"), at the same delta.

        Raises:
            ValueError: delta outside [1e-12, 1), steps outside [0, self.steps], no noise_multiplier yet, an accountant without
                a sound bound for the plan, or so little noise that no accountant gives a finite figure.
            PrivacyViolation: noise_multiplier is 0.
        """
        delta = checked_delta(delta)
        samples = whole("samples_per_user", samples_per_user, least=1)
        if samples > self.dataset_size:
            raise ValueError(f"samples_per_user={samples} is more than dataset_size={self.dataset_size}; use at most that many")
        usual, steps = self.rounds(steps), self._taken(steps)
        rounds = usual if rounds is None else whole("rounds", rounds, least=usual)
        check_samples(samples, self.sampling, self.band_count)
        step = with_samples(self.step, samples)
        check_accountant(step, accountant)
        if steps == 0:
            return PrivacySpent(
                epsilon=0.0, delta=delta, steps=0, accountant="none", rdp=0.0, pld=0.0, samples_per_user=samples
            )
        found = accounting.epsilon_bounds(step, rounds, delta, max(rounds, self.rounds()))
        return spent_by(step, steps, delta, found, accountant, rounds - usual)

    def delta(self, *, epsilon: float, steps: int | None = None, rounds: int | None = None) -> float:
        """Return the smallest proven delta at ``epsilon`` >= 0 after ``steps`` steps (all by default).

        Args:
            rounds: as of :meth:`spent`.
        """
        epsilon = number("epsilon", epsilon)
        if epsilon < 0:
            raise ValueError(f"epsilon={epsilon!r} must be >= 0")
        usual, steps, step = self.rounds(steps), self._taken(steps), self.step
        if steps == 0:
            return 0.0
        rounds = usual if rounds is None else whole("rounds", rounds, least=usual)
        bounds = accounting.delta_bounds(step, rounds, epsilon, max(rounds, self.rounds()))
        if bounds.value is None:
            raise ValueError(no_figure(step, bounds, "a larger epsilon"))
        # a Gaussian never gives delta = 0: don't let underflow claim it
        return min(max(bounds.value, 1e-300), 1.0)

    def delta_curve(
        self, epsilons: Sequence[float], *, steps: int | None = None, rounds: int | None = None
    ) -> tuple[float, ...]:
        """Return delta(epsilon) at each of ``epsilons``: the whole guarantee, of which (epsilon, delta) is one point."""
        return tuple(self.delta(epsilon=epsilon, steps=steps, rounds=rounds) for epsilon in epsilons)

    def gdp_mu(self, *, delta_floor: float = 1e-10, steps: int | None = None) -> float:
        """Return the least mu whose Gaussian trade-off curve (mu-GDP, Dong et al. 2022) covers delta(epsilon) >= delta_floor.

        An ESTIMATE for comparisons, not a guarantee: of delta(epsilon) at 41 points, and below ``delta_floor`` the true
        curve may lie above the Gaussian one, for a sampled Gaussian is no Gaussian. It is not the mu of the central limit
        theorem, which is no bound at all and can be far too small (0.08 for 0.45 at q = 0.001, sigma = 0.7, T = 1,000).
        """
        largest = self.epsilon(delta=delta_floor, steps=steps)
        if largest == 0:
            return 0.0
        epsilons = [largest * share / 40 for share in range(41)]
        curve = zip(epsilons, self.delta_curve(epsilons, steps=steps), strict=True)
        return max(accounting.gaussian_mu(epsilon, delta) for epsilon, delta in curve if delta < 1)

    def calibrate(self, *, epsilon: float, delta: float, accountant: str | None = None) -> "Mechanism":
        """Return the same plan with the least noise found for which 0.99 * epsilon <= epsilon(delta) <= epsilon.

        Args:
            accountant: "PLD", "RDP" or "exact": by that one's figure. By default by the smallest, which needs the least noise.

        Raises:
            ValueError: the target can't be met with a noise multiplier between 0.02 and 1e6; an accountant without a sound
                bound for the plan.
        """
        target, delta = positive("epsilon", epsilon), checked_delta(delta)
        if self.bands == AUTO:
            return best_bands(self, lambda plan: plan.calibrate(epsilon=target, delta=delta, accountant=accountant))
        check_accountant(self._step(1.0), accountant)
        sigma = least_for(self._step, self.rounds(), target, delta, accountant)
        return replace(self, noise_multiplier=sigma)

    @property
    def plan_hash(self) -> str:
        """SHA-256 of the canonical JSON of every field: equal exactly when the plans are."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def to_dict(self) -> dict[str, int | float | str | None]:
        """Return every field, JSON-able; bands only where there is more than one, so that other plans keep their hash."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if (name, value) != ("bands", 1)}

    @classmethod
    def from_dict(cls, facts: Mapping[str, object]) -> "Mechanism":
        """Return the inverse of :meth:`to_dict`; ValueError on an unknown or a missing key."""
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(facts) - set(known))
        missing = [name for name in ("dataset_size", "expected_batch_size", "steps") if name not in facts]
        if unknown or missing:
            raise ValueError(
                f"not the facts of a mechanism: unknown {unknown}, missing {missing}; the keys are {', '.join(known)}"
            )
        return cls(**facts)  # type: ignore[arg-type]

    def _taken(self, steps: int | None) -> int:
        if steps is None:
            return self.steps
        steps = whole("steps", steps, least=0)
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

    def _step(self, sigma: float) -> Step:
        """Return what the accountants are asked about. Every sample with probability 1 is a full batch."""
        full = self.sampling == "full-batch" or (self.sampling == "poisson" and self.part_rate == 1)
        batch = self.expected_batch_size if self.sampling == "without-replacement" else self.max_batch_size
        return Step(
            sampling="full-batch" if full else self.sampling,
            adjacency=self.adjacency,
            rate=self.part_rate,
            sigma=sigma,
            dataset_size=self.dataset_size,
            batch=int(batch or 0),
        )

