"""Tell what a run guarantees, in facts (:class:`PrivacyRecord`) and in words that need no mathematics.

A record holds public facts only. It refuses to exist if the noise that was really added is less than the mechanism asks for.
Every printed figure is rounded against the user: epsilon up.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from groupclip.arguments import whole
from groupclip.errors import PrivacyViolation
from groupclip.partition.groups import Partition
from groupclip.privacy import accounting
from groupclip.privacy.allocation import ROUNDING, noise_multiplier_of
from groupclip.privacy.curve import Curve, curve_of
from groupclip.privacy.earlier import EarlierTraining
from groupclip.privacy.ledger import SAMPLERS, Ledger
from groupclip.privacy.mechanism import Mechanism
from groupclip.privacy.spent import PrivacySpent
from groupclip.statement.card import model_card as model_card
from groupclip.statement.derived import obstacles_of, released, spent_by_several
from groupclip.statement.drawn import DrawnBudget
from groupclip.statement.terms import LAST, SAMPLINGS, SCHEMA, UNITS, kind_of, mechanism_name, software
from groupclip.statement.told import Told
from groupclip.statement.words import paragraphs


@dataclass(frozen=True, kw_only=True)
class PrivacyRecord:
    """Holds every fact that the privacy statement of a run needs; all of them may be published.

    Args:
        mechanism: the plan.
        delta: the delta at which epsilon is stated.
        steps_by_sampler: numbers of released steps, by who drew the batch: {"groupclip": ..., "user": ...}.
        thresholds: group -> R_m, the most that one sample adds to the group's sum (l2 norm).
        noise_std: group -> standard deviation really added to every coordinate of the group's sum.
        clip: name of the clip function.
        partition_style: how the groups were chosen.
        secure_noise: False where the noise came from a seed and can be recomputed.
        unsafe_statistics: names of the un-noised quantities that somebody looked at.
        unit: whom the guarantee protects, in words. Default: by the mechanism's unit, the only words that
            ``groupclip epsilon --record`` can check.
        other_releases: name -> noise multiplier (standard deviation over sensitivity) of everything else that every step
            released about the same batch, such as counts that set the thresholds.
        rounding: what a grid adds to the distance of neighbours, over the noise (:func:`groupclip.noise.grid.rounding`);
            0 if the noise is in floating point.
        sampling_vouched_by_user: True if somebody vouches that batches which groupclip didn't draw were drawn as the plan says.
            Without that, no epsilon is claimed for them.
        foreign_noise: name of the source of noise if it isn't part of groupclip; ``noise.KEY_GIVEN`` if the user gave its key.
        earlier: what other engines of this process had released on the same weights before.
        views: of each sample, whose mean gradient was clipped as one.
        weights: which ones are released, in words, if not those after the last step.
        rounds: of the accountants, that the steps amount to with correlated noise; the plan's own by default.
        budget: what the budget held that the run draws on; None without one, or where it isn't known.
        told: what only whoever trained knows. Set it by ``dataclasses.replace(record, told=..)``.

    Raises:
        ValueError: groups that differ between thresholds and noise_std; counts that aren't whole.
        PrivacyViolation: the realised noise multiplier (sum_m (R_m / s_m)^2)^(-1/2) is below the mechanism's; with other
            releases and rounding as in :func:`groupclip.privacy.allocation.noise_multiplier_of`.
    """

    mechanism: Mechanism
    delta: float
    steps_by_sampler: Mapping[str, int]
    thresholds: Mapping[str, float]
    noise_std: Mapping[str, float]
    clip: str
    partition_style: str
    secure_noise: bool
    unsafe_statistics: tuple[str, ...] = ()
    unit: str = ""
    other_releases: Mapping[str, float] = field(default_factory=dict)
    rounding: float = 0.0
    sampling_vouched_by_user: bool = False
    foreign_noise: str = ""
    earlier: tuple[EarlierTraining, ...] = ()
    views: int = 1
    weights: str = ""
    rounds: int | None = None
    budget: DrawnBudget | None = None
    told: Told = field(default_factory=Told)

    def __post_init__(self) -> None:
        if self.mechanism.noise_multiplier is None:
            raise ValueError("the mechanism has no noise_multiplier yet: calibrate it before the run is described")
        if set(self.steps_by_sampler) != set(SAMPLERS):
            raise ValueError(
                f"steps_by_sampler={dict(self.steps_by_sampler)!r} must count {' and '.join(SAMPLERS)} steps; pass "
                "ledger.steps_by_sampler"
            )
        if not self.thresholds or list(self.thresholds) != list(self.noise_std):
            raise ValueError(
                f"thresholds are given for the groups {list(self.thresholds)} and noise_std for "
                f"{list(self.noise_std)}; both need every group, in one order"
            )
        object.__setattr__(self, "steps_by_sampler", dict(self.steps_by_sampler))
        whole("views", self.views, least=1)
        object.__setattr__(self, "thresholds", {name: float(bound) for name, bound in self.thresholds.items()})
        object.__setattr__(self, "noise_std", {name: float(std) for name, std in self.noise_std.items()})
        object.__setattr__(self, "unsafe_statistics", tuple(self.unsafe_statistics))
        object.__setattr__(self, "unit", self.unit or UNITS[self.mechanism.unit])
        object.__setattr__(self, "other_releases", {name: float(z) for name, z in self.other_releases.items()})
        if any(not 0 < z < math.inf for z in self.other_releases.values()) or not 0 <= self.rounding < math.inf:
            raise ValueError(
                f"other_releases={self.other_releases} must be noise multipliers > 0, rounding={self.rounding} >= 0"
            )
        planned, realised = self.mechanism.noise_multiplier, self.realised_noise_multiplier
        if not realised >= planned * (1 - ROUNDING):
            raise PrivacyViolation(
                f"the noise of the groups amounts to noise_multiplier={realised:.6g}, the plan says {planned:.6g}: "
                "epsilon of the plan would claim too much. Add noise of standard deviation noise_multiplier * "
                "||(R_1, ..., R_M)|| to every group, or another allocation with sum (R_m / s_m)^2 <= 1 / sigma^2"
            )

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        *,
        delta: float,
        partition: Partition,
        thresholds: Mapping[str, float],
        noise_std: float | Mapping[str, float],
        clip: str,
        secure_noise: bool,
        unsafe: Sequence[str] = (),
        other_releases: Mapping[str, float] | None = None,
        rounding: float = 0.0,
        sampling_vouched_by_user: bool = False,
        foreign_noise: str = "",
        earlier: Sequence[EarlierTraining] = (),
        views: int = 1,
        budget: DrawnBudget | None = None,
    ) -> "PrivacyRecord":
        """Make the record of what ``ledger`` has counted so far; a single ``noise_std`` holds for every group of ``partition``.

        ``unsafe`` are the names of un-noised statistics. The other arguments are the record's own.
        """
        if not isinstance(noise_std, Mapping):
            noise_std = dict.fromkeys(partition.names, noise_std)
        return cls(
            mechanism=ledger.mechanism,
            delta=delta,
            steps_by_sampler=ledger.steps_by_sampler,
            thresholds={name: thresholds[name] for name in partition.names},
            noise_std={name: noise_std[name] for name in partition.names},
            clip=clip,
            partition_style=partition.style,
            secure_noise=secure_noise,
            unsafe_statistics=tuple(unsafe),
            other_releases=other_releases or {},
            rounding=rounding,
            sampling_vouched_by_user=sampling_vouched_by_user,
            foreign_noise=foreign_noise,
            earlier=tuple(earlier),
            views=views,
            rounds=ledger.rounds,
            budget=budget,
        )

    @property
    def steps(self) -> int:
        """The number of released steps."""
        return sum(self.steps_by_sampler.values())

    @property
    def released(self) -> str:
        """What the figure covers, in words."""
        return released(self.mechanism, self.other_releases)

    @property
    def sampling_is_ours(self) -> bool:
        """True if groupclip drew every batch, so that the sampling is known to be the mechanism's."""
        return self.steps_by_sampler["user"] == 0

    @property
    def realised_noise_multiplier(self) -> float:
        """The noise multiplier that the added noise amounts to; 0 without noise."""
        return noise_multiplier_of(self.noise_std, self.thresholds, self.other_releases.values(), self.rounding)

    @property
    def obstacles(self) -> tuple[str, ...]:
        """The reasons why no epsilon can be claimed; empty if one can."""
        return obstacles_of(
            self.mechanism,
            secure_noise=self.secure_noise,
            steps_by_sampler=self.steps_by_sampler,
            vouched=self.sampling_vouched_by_user,
        )

    @cached_property
    def spent(self) -> PrivacySpent | None:
        """What the released steps spent at ``delta``; None if no epsilon can be claimed."""
        return None if self.obstacles else self.mechanism.spent(delta=self.delta, steps=self.steps, rounds=self.rounds)

    @cached_property
    def curve(self) -> Curve:
        """Delta at several epsilons, and mu; empty if no epsilon can be claimed."""
        spent = self.spent
        return Curve() if spent is None else curve_of(self.mechanism, steps=self.steps, epsilon=spent.epsilon, rounds=self.rounds)

    @cached_property
    def spent_by_several(self) -> dict[int, PrivacySpent]:
        """Number of one person's samples (users, where the unit is a user) -> what is spent for them, at the same ``delta``.

        Empty if no epsilon can be claimed, or no accountant has a finite figure for several samples under the plan.
        """
        return {} if self.obstacles else spent_by_several(self.mechanism, delta=self.delta, steps=self.steps)

    @property
    def together(self) -> tuple[float, float] | None:
        """(epsilon, delta) of these steps and the earlier steps on the same weights, if all were on the same data; both add up.

        None if no epsilon is claimed for one of them.
        """
        each = [None if self.spent is None else self.spent.epsilon, *(e.epsilon(self.delta) for e in self.earlier)]
        known = [epsilon for epsilon in each if epsilon is not None]
        return (math.fsum(known), len(each) * self.delta) if len(known) == len(each) else None

    def to_dict(self) -> dict[str, Any]:
        """Write the record as a JSON-able mapping; ``epsilon`` is None if none is claimed."""
        spent = self.spent
        return {
            "schema": SCHEMA,
            "private": not self.obstacles,
            "obstacles": list(self.obstacles),
            "unit_of_privacy": self.unit,
            "adjacency": self.mechanism.adjacency,
            "epsilon": None if spent is None else spent.epsilon,
            "delta": self.delta,
            "epsilon_by_samples_of_a_person": {str(k): spent.epsilon for k, spent in self.spent_by_several.items()},
            "mechanism": mechanism_name(self.mechanism),
            "dataset_size": self.mechanism.dataset_size,
            "expected_batch_size": self.mechanism.expected_batch_size,
            "sample_rate": self.mechanism.sample_rate,
            "steps_taken": self.steps,
            "steps_planned": self.mechanism.steps,
            "noise_multiplier": self.mechanism.noise_multiplier,
            "clip": self.clip,
            "views": self.views,
            "partition_style": self.partition_style,
            "groups": [
                {"name": name, "threshold": bound, "noise_std": self.noise_std[name]}
                for name, bound in self.thresholds.items()
            ],
            "losses_assumed": f"each of one {self.mechanism.unit} alone",
            "sampling_assumed": SAMPLINGS[kind_of(self.mechanism)],
            "bands": self.mechanism.bands,
            "rounds": self.mechanism.rounds(self.steps) if self.rounds is None else self.rounds,
            "max_batch_size": self.mechanism.max_batch_size,
            "other_releases": [{"name": name, "noise_multiplier": z} for name, z in self.other_releases.items()],
            "sampling_used": dict(self.steps_by_sampler),
            "sampling_vouched_by_user": self.sampling_vouched_by_user and not self.sampling_is_ours,
            "accountant": None if spent is None else spent.accountant,
            "epsilon_rdp": None if spent is None else spent.rdp,
            "epsilon_pld": None if spent is None else spent.pld,
            "epsilon_exact": None if spent is None else spent.exact,
            "accountant_note": "" if spent is None else spent.note,
            "accounting_library": f"dp-accounting {accounting.version()}",
            "released": self.released,
            "weights": self.weights or LAST,
            "normalised_by": self.mechanism.expected_batch_size,
            "tuning_accounted": self.told.search in ("none", "counted"),
            "told": self.told.to_dict(),
            "budget": None if self.budget is None else self.budget.to_dict(),
            "delta_curve": [{"epsilon": epsilon, "delta": delta} for epsilon, delta in self.curve.points],
            "gdp_mu_estimate": self.curve.mu,
            "earlier_trainings": [{**e.to_dict(), "epsilon": e.epsilon(self.delta)} for e in self.earlier],
            "secure_noise": self.secure_noise,
            "noise_source": self.foreign_noise or "groupclip",
            "unsafe_statistics": list(self.unsafe_statistics),
            "hardened_against_floating_point_attacks": self.rounding > 0,
            "software": software(),
            "plan_hash": self.mechanism.plan_hash,
        }

    def text(self) -> str:
        """Write the statement as plain text, one paragraph for each question that a reader has."""
        return "\n\n".join(f"{heading}. {words}" for heading, words in paragraphs(self))
