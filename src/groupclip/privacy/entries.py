"""The entries of a budget: what its lines say, and what they spend together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from groupclip.arguments import number, positive
from groupclip.privacy.composition import composed_epsilon
from groupclip.privacy.ledger import SAMPLERS
from groupclip.privacy.mechanism import Mechanism
from groupclip.privacy.selection import checked_search
from groupclip.privacy.stretches import begun_at, rounds_in


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One training or release.

    Args:
        name: by which lines of the file speak of it.
        label: what a person called it.
        mechanism: its plan; None for a guarantee that was given.
        taken: how many steps were charged.
        theirs: how many of them were on batches that groupclip didn't draw.
        is_open: it may take the rest of its steps.
        begun: of a plan with bands: how many steps were charged when its noise was begun, and begun anew.
        search: mean and shape of the number of runs, of which the best is released.
        given: (epsilon, delta) that somebody else computed.
    """

    name: str
    label: str = ""
    mechanism: Mechanism | None = None
    taken: int = 0
    theirs: int = 0
    is_open: bool = False
    begun: tuple[int, ...] = ()
    search: tuple[float, float] | None = None
    given: tuple[float, float] | None = None

    @property
    def is_training(self) -> bool:
        """Whether its steps are charged one by one, or could have been."""
        return self.mechanism is not None and self.search is None

    @property
    def planned(self) -> int:
        """The number of steps that it may take in all."""
        return 0 if self.mechanism is None else self.mechanism.steps

    @property
    def counted(self) -> int:
        """The number of steps that nobody else can spend."""
        return self.planned if self.is_open else self.taken

    def rounds(self, *, taken: bool) -> int:
        """Return the rounds of the accountants in the steps taken, or in all that nobody else can spend."""
        assert self.mechanism is not None
        return rounds_in(self.begun, self.taken if taken else self.counted, self.mechanism.band_count)

    def begins(self, *, anew: bool) -> Entry:
        """Return the entry whose next step begins its noise ``anew``, or goes on."""
        assert self.mechanism is not None
        return replace(self, begun=begun_at(self.begun, self.taken, self.mechanism.band_count, anew=anew))

    def reopened(self) -> Entry:
        return replace(self, is_open=True)

    @classmethod
    def from_line(cls, told: Mapping[str, Any]) -> Entry:
        """Read the line that begins an entry. Raises ValueError, KeyError, TypeError or PrivacyViolation if it doesn't."""
        name, label = told["id"], told["label"]
        if not isinstance(name, str) or not isinstance(label, str):
            raise TypeError("its id or its label is no text")
        facts = set(told) - {"id", "label"}
        if facts == {"guarantee"}:
            epsilon, delta = told["guarantee"]
            return cls(name=name, label=label, given=_guarantee(epsilon, delta))
        mechanism = Mechanism.from_dict(told["mechanism"])
        _ = mechanism.step  # raises where there is no noise, or a noise without a figure
        if facts == {"mechanism", "search"}:
            mean, law = told["search"]
            search = checked_search(mean, law, mechanism)
            return cls(name=name, label=label, mechanism=mechanism, taken=mechanism.steps, search=search)
        if facts != {"mechanism", "taken", "open"} or type(told["open"]) is not bool:
            raise ValueError("no entry")
        taken = _count(told["taken"], mechanism.steps)
        return cls(name=name, label=label, mechanism=mechanism, taken=taken, is_open=told["open"])


def steps_of(mechanism: Mechanism, *, label: str, taken: int, is_open: bool = False) -> dict[str, Any]:
    """Return the line of a training."""
    return {"label": str(label), "mechanism": mechanism.to_dict(), "taken": taken, "open": is_open}


def search_of(mechanism: Mechanism, mean_runs: float, law: str | float, *, label: str) -> dict[str, Any]:
    """Return the line of a search. Raises ValueError as :func:`groupclip.search_cost`."""
    mean, _ = checked_search(mean_runs, law, mechanism)
    return {"label": str(label), "mechanism": mechanism.to_dict(), "search": [mean, law]}


def guarantee_of(epsilon: float, delta: float, *, label: str) -> dict[str, Any]:
    """Return the line of a release that is (epsilon, delta) private. ValueError or TypeError for what isn't."""
    return {"label": str(label), "guarantee": list(_guarantee(epsilon, delta))}


def take(known: dict[str, Entry], told: Mapping[str, Any], *, adjacency: str, unit: str) -> None:
    """Take one line into ``known``. Raises ValueError, KeyError, TypeError or PrivacyViolation if it fits no entry.

    Args:
        adjacency, unit: that every mechanism must have: figures of different neighbours don't add up.
    """
    name = told["id"]
    entry = known.get(name)
    if entry is None:
        entry = Entry.from_line(told)
        if entry.mechanism is not None and (entry.mechanism.adjacency, entry.mechanism.unit) != (adjacency, unit):
            raise ValueError("an entry of another adjacency or unit than the budget's")
        known[name] = entry
    elif set(told) - {"anew"} == {"id", "taken", "sampling"}:
        if not entry.is_open or told["taken"] != entry.taken + 1:
            raise ValueError("a step out of turn")
        if told["sampling"] not in SAMPLERS or told.get("anew", True) is not True:
            raise ValueError("neither groupclip's nor the user's sampling, or anew isn't true")
        theirs = entry.theirs + (told["sampling"] != "groupclip")
        entry = entry.begins(anew=told.get("anew", False) is True)
        known[name] = replace(entry, taken=_count(told["taken"], entry.planned), theirs=theirs)
    elif set(told) == {"id", "open"} and type(told["open"]) is bool and entry.is_training:
        known[name] = replace(entry, is_open=told["open"])
    else:
        raise ValueError("neither a step nor an end")


def together(entries: Sequence[Entry], delta: float, *, taken: bool) -> tuple[float, str]:
    """Return epsilon at ``delta`` of all entries and whose figure it is: of the steps taken, or of all that may be."""
    trainings = [(e.mechanism.step, e.rounds(taken=taken)) for e in entries if e.mechanism and not e.search]
    searches = [(e.mechanism.step, e.mechanism.rounds(), *e.search) for e in entries if e.mechanism and e.search]
    return composed_epsilon(trainings, searches, [e.given for e in entries if e.given], delta)


def differing(entry: Entry, mechanism: Mechanism) -> str:
    """Tell in which facts the plan of an entry differs from another one."""
    own = {} if entry.mechanism is None else entry.mechanism.to_dict()
    asked = mechanism.to_dict()
    return ", ".join(f"{name} is {own.get(name)!r}, and not {value!r}" for name, value in asked.items() if own.get(name) != value)


def _guarantee(epsilon: object, delta: object) -> tuple[float, float]:
    found, failing = positive("epsilon", epsilon), number("delta", delta)
    if not 0 <= failing < 1:
        raise ValueError(f"delta={delta!r} must be in [0, 1)")
    return found, failing


def _count(value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{value!r} steps of {most}")
    return value
