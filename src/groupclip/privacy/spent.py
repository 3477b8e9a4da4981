"""What a plan has spent: the figure, the accountant whose it is, and the deltas that figures can be asked for."""

import logging
from dataclasses import dataclass

from groupclip.arguments import number, whole
from groupclip.privacy import accounting
from groupclip.privacy.sampled_step import Bounds, Step

LITTLE_NOISE = (
    0.3  # over what a sample moves the sum by: its presence in one step is a difference of three deviations and more
)
_LITTLE_NOISE = "with so little noise a single step may tell whether a sample was in its batch"

_ANEW = "the correlated noise was begun anew (a resumed run, or a new iterator): rounds on top of those of steps in one go: {}"
_ALL_AT_ONCE = "a person's samples count as if all were drawn as soon as one is: a bound, not a tight one"


@dataclass(frozen=True, kw_only=True)
class PrivacySpent:
    """Holds what has been spent: (epsilon, delta), and which accountant says so.

    ``epsilon`` is the smallest of ``exact``, ``rdp`` and ``pld`` (all are upper bounds; None where one can't
    answer). ``accountant`` is "PLD", "RDP", "exact" (full batches) or, before the first step, "none". ``note`` says
    what limited the figure. ``samples_per_user`` is how many samples a person has whom the figure is for.
    """

    epsilon: float
    delta: float
    steps: int
    accountant: str
    rdp: float | None = None
    pld: float | None = None
    exact: float | None = None
    note: str = ""
    samples_per_user: int = 1


def spent_by(
    step: Step, steps: int, delta: float, found: Bounds, accountant: str | None = None, more_rounds: int = 0
) -> PrivacySpent:
    """Return the smallest of the bounds, or that of ``accountant``. ValueError where there is none.

    Args:
        more_rounds: that were counted because correlated noise was begun anew among the steps.
    """
    bounds = found.only(accountant)
    if bounds.value is None:
        raise ValueError(no_figure(step, bounds, "a larger delta"))
    return PrivacySpent(
        epsilon=bounds.value,
        delta=delta,
        steps=steps,
        accountant=bounds.accountant,
        rdp=bounds.rdp,
        pld=bounds.pld,
        exact=bounds.exact,
        note="; ".join(filter(None, (bounds.note, *_notes(step), *[_ANEW.format(more_rounds)] * bool(more_rounds)))),
        samples_per_user=step.samples,
    )


def _notes(step: Step) -> list[str]:
    loose = step.samples > 1 and step.sampling != "full-batch" and not step.is_mixture
    return [_LITTLE_NOISE] * (step.one_sided < LITTLE_NOISE) + [_ALL_AT_ONCE] * loose


def warn_if_lax(delta: float, dataset_size: int, unit: str) -> None:
    """Say in the log that a delta is too large to mean anything: see :func:`default_delta`."""
    if told := told_lax(delta, dataset_size, unit):
        logging.getLogger("groupclip").warning(
            "delta %g is %s. Ask for at most %.3g", delta, told, default_delta(dataset_size)
        )


def told_lax(delta: float, dataset_size: int, unit: str) -> str:
    """Return how much a delta of 1/n or more is, and why that means nothing; "" below 1/n."""
    share = 1 / dataset_size
    if delta < share:
        return ""
    much = "more than" if delta > share else "as much as"
    return f"{much} one in the number of {unit}s ({dataset_size:,}): publishing one of them whole would satisfy it"


def default_delta(dataset_size: int) -> float:
    """Return min(1e-5, 1 / (2n)) for a ``dataset_size`` of n, the delta to use when none is asked for.

    Publishing one record picked at random satisfies (0, 1/n), so delta has to be below 1/n to mean anything;
    1/(2n) is the field's custom for fine-tuning (and 1e-5 at the paper's n = 50,000). For small n that alone
    would be far too lax, so it is never above 1e-5. Choose a smaller one where a failure would be a
    catastrophe.
    """
    return max(min(1e-5, 1 / (2 * whole("dataset_size", dataset_size, least=1))), accounting.SMALLEST_DELTA)


def checked_delta(delta: float) -> float:
    """Return ``delta`` as a float; ValueError where no accountant can answer."""
    delta = number("delta", delta)
    if not accounting.SMALLEST_DELTA <= delta < 1:
        raise ValueError(
            f"delta={delta!r} must be in [{accounting.SMALLEST_DELTA:g}, 1): the accountants' double "
            "precision ends there; groupclip.default_delta(dataset_size) is a usual choice"
        )
    return delta


def no_figure(step: Step, bounds: Bounds, easier: str) -> str:
    """Say why no accountant gives a figure, and what to do: ``easier`` is what may be asked for instead."""
    if bounds.note and "RDP" not in step.who:
        return (
            f"no accountant gives a figure for sampling={step.sampling!r} with adjacency={step.adjacency!r} here: "
            f"{bounds.note}, and RDP has no sound bound for this pair; use {easier}, fewer steps or another pair"
        )
    return (
        f"noise_multiplier={step.sigma:g} is so little noise that no accountant gives a finite figure; use "
        "mechanism.calibrate(epsilon=, delta=), which gives the noise that an epsilon needs"
    )
