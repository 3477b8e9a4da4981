"""What one step is to the accountants, and which of them can answer: the pairs that are refused are named here.

"add-or-remove-one": neighbours differ by one sample's presence. "zero-out": by one sample being replaced by one that
adds nothing, so the number of samples is public. "replace-one": by one sample being replaced by any other.
"""

import math
from dataclasses import dataclass, replace

# (sampling, adjacency) -> who can answer. Only what dp-accounting has a sound accountant for.
ACCOUNTANTS: dict[tuple[str, str], tuple[str, ...]] = {
    ("poisson", "add-or-remove-one"): ("PLD", "RDP"),
    ("poisson", "zero-out"): ("PLD", "RDP"),
    ("poisson", "replace-one"): ("PLD",),
    ("truncated-poisson", "zero-out"): ("PLD",),
    ("truncated-poisson", "replace-one"): ("PLD",),
    ("without-replacement", "replace-one"): ("RDP",),
    ("full-batch", "add-or-remove-one"): ("exact", "RDP"),
    ("full-batch", "zero-out"): ("exact", "RDP"),
    ("full-batch", "replace-one"): ("exact", "RDP"),
}
REFUSED: dict[tuple[str, str], str] = {
    ("truncated-poisson", "add-or-remove-one"): (
        "how often a batch is truncated depends on the number of samples, which add-or-remove-one lets vary; "
        "use adjacency='zero-out' (or 'replace-one'), where it is public"
    ),
    ("without-replacement", "add-or-remove-one"): (
        "a batch of fixed size changes another sample's place when one is added, and no sound accountant is at "
        "hand; use adjacency='replace-one'"
    ),
    ("without-replacement", "zero-out"): (
        "dp-accounting has no sound accountant for it; use adjacency='replace-one', whose figure covers zero-out too"
    ),
}
_MOST_MIXED = 64  # Gaussians: more take long, and are bounded by at_once
SAMPLINGS = tuple(dict.fromkeys(sampling for sampling, _ in ACCOUNTANTS))
ADJACENCIES = tuple(dict.fromkeys(adjacency for _, adjacency in ACCOUNTANTS))


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step as the accountants see it.

    Args:
        sampling, adjacency: a pair of ``ACCOUNTANTS``.
        rate: q, with which a sample enters the batch.
        sigma: noise multiplier.
        dataset_size: n; needed only without Poisson sampling.
        batch: the size of a batch drawn without replacement, or the cap of a truncated batch.
        samples: k, how many samples of one person neighbours differ by; more than 1 with Poisson sampling and full batches.
    """

    sampling: str
    adjacency: str
    rate: float
    sigma: float
    dataset_size: int = 0
    batch: int = 0
    samples: int = 1

    @property
    def is_mixture(self) -> bool:
        """Whether a step is a mixture of Gaussians: each of several samples is there or not, by itself."""
        return 1 < self.samples <= _MOST_MIXED and self.sampling == "poisson" and self.adjacency != "replace-one"

    @property
    def at_once(self) -> "Step":
        """The step in which a person's samples are all there as soon as one is: one sample that counts ``samples`` times.

        It spends at least as much. For the batches without the person are the same ones, and the others move by at most so much.
        """
        if self.samples == 1:
            return self
        rate = self.rate if self.rate == 1 else -math.expm1(self.samples * math.log1p(-self.rate))
        return replace(self, samples=1, rate=rate, sigma=self.sigma / self.samples)

    @property
    def who(self) -> tuple[str, ...]:
        """Accountants that can answer."""
        return ACCOUNTANTS[self.sampling, self.adjacency]

    @property
    def one_sided(self) -> float:
        """Noise over what a neighbour moves the sum by: replacing a sample moves it twice as far."""
        return self.sigma / 2 if self.adjacency == "replace-one" else self.sigma


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Upper bounds on one figure; None where an accountant can't give one. ``note`` says why, in words."""

    rdp: float | None = None
    pld: float | None = None
    exact: float | None = None
    note: str = ""

    @property
    def value(self) -> float | None:
        """The smallest bound, None if there is none."""
        return min((bound for bound in (self.exact, self.pld, self.rdp) if bound is not None), default=None)

    @property
    def accountant(self) -> str:
        """The name of the accountant whose bound ``value`` is: "exact", "PLD" or "RDP"."""
        named = (("exact", self.exact), ("PLD", self.pld), ("RDP", self.rdp))
        return next((name for name, bound in named if bound is not None and bound == self.value), "none")

    def only(self, accountant: str | None) -> "Bounds":
        """Return the bound of one accountant; all of them where none is named."""
        if accountant is None:
            return self
        return Bounds(**{accountant.lower(): getattr(self, accountant.lower())}, note=self.note)


def check_combination(sampling: str, adjacency: str) -> None:
    """Raises ValueError, saying why and what to use, unless there is a sound accountant for the pair."""
    for name, value, known in (("sampling", sampling, SAMPLINGS), ("adjacency", adjacency, ADJACENCIES)):
        if value not in known:
            raise ValueError(f"{name}={value!r} is unknown; use one of {', '.join(known)}")
    if (sampling, adjacency) in REFUSED:
        raise ValueError(
            f"sampling={sampling!r} with adjacency={adjacency!r} can't be accounted: {REFUSED[sampling, adjacency]}"
        )


def counts_several(sampling: str, bands: int) -> bool:
    """Return whether a figure for several samples of one person is known with this sampling and so many bands."""
    return sampling in ("poisson", "full-batch") and bands == 1


def check_samples(samples: int, sampling: str, bands: int) -> None:
    """Raise ValueError where no accountant is known to be sound for a person with so many samples."""
    if samples == 1 or counts_several(sampling, bands):
        return
    if bands > 1:
        raise ValueError(
            f"samples_per_user={samples} can't be accounted with bands={bands}: samples of one person may lie in different parts "
            "of the data, so that their steps are near each other and share noise; use bands=1, or plan with unit='user'"
        )
    raise ValueError(
        f"samples_per_user={samples} can't be accounted with sampling={sampling!r}: no sound accountant is at hand for "
        "several samples of one person; use sampling='poisson', or plan with unit='user'"
    )


def with_samples(step: Step, samples: int) -> Step:
    """Return the step for a person with so many samples: see :func:`check_samples`."""
    return step if samples == 1 else replace(step, samples=samples)


def check_accountant(step: Step, accountant: str | None) -> None:
    """Raises ValueError, saying which can, unless ``accountant`` (any where None) has a sound bound for the step."""
    known = sorted({name for names in ACCOUNTANTS.values() for name in names})
    if accountant is not None and accountant not in known:
        raise ValueError(
            f"accountant={accountant!r} is unknown; use one of {', '.join(known)}, or none for the smallest"
        )
    if accountant is not None and accountant not in step.who:
        raise ValueError(
            f"accountant={accountant!r} has no sound bound for sampling={step.sampling!r} with adjacency={step.adjacency!r}; "
            f"use {' or '.join(step.who)}"
        )
