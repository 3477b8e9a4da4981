"""What a record's claims follow from: why none can be made, the figures for several samples, and what is covered. Without torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from groupclip.privacy.mechanism import Mechanism
from groupclip.privacy.sampled_step import counts_several
from groupclip.privacy.spent import PrivacySpent
from groupclip.statement.terms import CLIPPED, SAMPLINGS, kind_of

SEVERAL = (2, 4, 8)  # samples of one person, for whom figures are stated too


def obstacles_of(
    plan: Mechanism, *, secure_noise: bool, steps_by_sampler: Mapping[str, int], vouched: bool
) -> tuple[str, ...]:
    """Return the reasons why no epsilon can be claimed; empty if one can."""
    found, theirs = [], steps_by_sampler["user"]
    if not plan.noise_multiplier:
        found.append("no noise was added to the gradients (noise_multiplier is 0)")
    if not secure_noise:
        found.append("the noise was made from a seed, so it is reproducible and can be subtracted again")
    if theirs and not vouched:
        found.append(
            f"in {theirs:,} of {sum(steps_by_sampler.values()):,} steps groupclip didn't draw the batch, or it wasn't taken "
            f"whole and in turn, and nobody vouches that the sampling was {SAMPLINGS[kind_of(plan)]}"
        )
    return tuple(found)


def spent_by_several(plan: Mechanism, *, delta: float, steps: int) -> dict[int, PrivacySpent]:
    """Return number of one person's samples -> what is spent for them; empty where no accountant has a finite figure."""
    if not counts_several(plan.sampling, plan.band_count):
        return {}
    found = {}
    for k in (k for k in SEVERAL if k <= plan.dataset_size):
        with contextlib.suppress(ValueError):  # so little noise that there is no finite figure for so many
            found[k] = plan.spent(delta=delta, steps=steps, samples_per_user=k)
    return found


def released(plan: Mechanism, others: Iterable[str]) -> str:
    """Say what the figure covers; ``others``: names of what every step released beside the gradients."""
    also = "".join(f", {name}" for name in others)
    return f"the noisy {CLIPPED[plan.unit]} of every step, so the weights after every step{also}"
