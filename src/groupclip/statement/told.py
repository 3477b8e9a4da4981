"""What only whoever trained a model knows of its data: told in their words, or marked as not known to groupclip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from groupclip.arguments import positive

SEARCHES = ("", "none", "not counted", "counted")


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a statement can't find out. All of it may be published; what is empty is said to be not known to groupclip.

    Args:
        trust: who holds the data and trains, who may see what, and why they are trusted.
        vocabulary: whether one was made from these data, and how.
        constants: whether means, ranges or other constants of the preprocessing were computed from these data.
        filtering: whether records were chosen, cleaned or left out by what is in them, and how.
        early_stopping: whether the number of steps, or the checkpoint, was chosen by a score on these data.
        search: of settings, by runs on these data: "none", "not counted", or "counted", with ``search_epsilon``.
        search_epsilon: what the whole search spends at the delta of the statement, the published run included.
        others: what else was or will be released from these data, and what it spends.
        small_groups: what was found out about the accuracy for groups with few samples.
        access: who can reach the data, and how they are kept.
        commit: of the program that trained.

    Raises:
        ValueError, TypeError: naming the argument.
    """

    trust: str = ""
    vocabulary: str = ""
    constants: str = ""
    filtering: str = ""
    early_stopping: str = ""
    search: str = ""
    search_epsilon: float | None = None
    others: str = ""
    small_groups: str = ""
    access: str = ""
    commit: str = ""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name != "search_epsilon" and not isinstance(value, str):
                raise TypeError(f"{one.name}={value!r} must be text; leave it out if it isn't known")
        if self.search not in SEARCHES:
            raise ValueError(f"search={self.search!r} is unknown; use one of {', '.join(filter(None, SEARCHES))}, or leave it out")
        if (self.search == "counted") != (self.search_epsilon is not None):
            raise ValueError(
                f"search={self.search!r} with search_epsilon={self.search_epsilon!r}: a search that is counted has an epsilon, and "
                "no other has (groupclip.search_cost computes it)"
            )
        if self.search_epsilon is not None:
            positive("search_epsilon", self.search_epsilon)

    def to_dict(self) -> dict[str, str | float | None]:
        """Return every field, JSON-able."""
        return asdict(self)

    @classmethod
    def from_dict(cls, facts: Mapping[str, object]) -> Told:
        """Return the inverse of :meth:`to_dict`. ValueError for an unknown key."""
        known = [one.name for one in fields(cls)]
        unknown = sorted(set(facts) - set(known))
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: nothing of that name can be told; the names are {', '.join(known)}")
        return cls(**facts)  # type: ignore[arg-type]
