"""What the figure of a statement covers, and what it doesn't, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from groupclip.privacy.figures import figure
from groupclip.statement.terms import CLIPPED

if TYPE_CHECKING:
    from groupclip.statement.record import PrivacyRecord


def covered(record: PrivacyRecord) -> str:
    """Say what may be published under the figure."""
    noisy = CLIPPED[record.mechanism.unit]
    return (
        f"The figure covers the final weights, the weights after every step, and every noisy {noisy}: all of them may be published "
        "together. Anything computed from them alone is covered as well."
        + (f" The final weights are {record.weights}: such an average costs no privacy." if record.weights else "")
        + (
            " The figure covers what these steps did to the weights, and not what was spent on the weights before."
            if record.earlier
            else ""
        )
    )


def _tuning(record: PrivacyRecord) -> str:
    told = record.told
    if told.search == "none":
        but = "" if record.budget is None else record.budget.contradicts(told.search)
        return f"Whoever trained says that no settings were chosen by comparing runs on these data.{but and ' '}{but}"
    if told.search_epsilon is not None:
        return (
            f"The figure is of one run. Settings were chosen by comparing runs on these data: whoever trained says that the whole "
            f"search spends epsilon = {figure(told.search_epsilon)} at the same delta, which is the figure to go by."
        )
    return (
        "Tuning is not accounted: if settings were chosen by comparing several runs on these data, all of those runs "
        "count, and the true epsilon is larger."
    )


def not_covered(record: PrivacyRecord) -> str:
    """Say what the figure doesn't cover, un-noised statistics first."""
    told = [
        _tuning(record),
        "Other trainings on these data, of other models or of other parts of this model, spend epsilon too, and all of it adds up. "
        "So do earlier trainings of these weights: groupclip doesn't know where the weights came from that this training began "
        "with, such as those of a checkpoint.",
        "Figures that were measured on the training data, such as loss or accuracy, are not covered.",
        (
            "The noise is exact, on a grid. The sum under the noise was formed in floating point, whose rounding isn't covered."
            if record.rounding
            else "The noise is added in floating-point arithmetic that isn't hardened against attacks on its rounding."
        ),
        "The time that steps take isn't hidden.",
        "Clipping and noise weigh more where there is little data: the model may be less accurate for small groups of people, and "
        "groupclip doesn't measure that.",
    ]
    if record.unsafe_statistics:
        told.insert(
            0,
            "UN-NOISED STATISTICS WERE LOOKED AT during training: "
            + ", ".join(record.unsafe_statistics)
            + ". These statistics can reveal single samples. They aren't covered and must not be published. Decisions that were "
            "made because of them aren't covered either.",
        )
    return " ".join(told)
