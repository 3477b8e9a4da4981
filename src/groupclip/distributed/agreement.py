"""What the ranks must agree on before anything is released: one training, one plan, one ledger."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..errors import PrivacyViolation
from .ranks import Ranks

T = TypeVar("T")
_log = logging.getLogger("groupclip")


def unanimous(ranks: Ranks, act: Callable[[], T], facts: Callable[[], Mapping[str, Any]], what: str) -> T:
    """Return what ``act`` returns, if it returns on every rank and ``facts`` are the same on all. All ranks must call it.

    Args:
        ranks: of the training.
        act: checks something, and changes nothing that matters where another rank refuses.
        facts: name -> value, as JSON holds it. Asked after ``act``.
        what: is decided, for messages: "the step".

    Raises:
        PrivacyViolation: another rank refused, or has other facts. Where ``act`` raises, its own error is raised here.
    """
    result, everybody = _voted(ranks, act, facts, what)
    own = everybody[ranks.rank]
    for rank, other in enumerate(everybody):
        differing = [name for name in own if other.get(name) != own[name]]
        if differing:
            name = differing[0]
            raise PrivacyViolation(
                f"the ranks don't agree on {name}, so none takes {what}: here (rank {ranks.rank}) it is "
                f"{own[name]!r}, on rank {rank} {other.get(name)!r}. Several processes make one training: "
                "run the same program on all, and load the same state into all"
            )
    return result


def agreed(
    ranks: Ranks | None, act: Callable[[], T], what: str, *, undo: Callable[[T], object] = lambda _: None
) -> T:
    """Return what ``act`` returns, if it returns on every rank. Where ``ranks`` is None, one process asks nobody.

    Args:
        ranks: of the training. All of them must call it.
        act: may raise on some ranks alone.
        what: is decided, for messages.
        undo: is given what ``act`` returned here, if another rank refused.

    Raises:
        PrivacyViolation: another rank refused. Where ``act`` raises, its own error is raised here.
    """
    if ranks is None:
        return act()
    done: list[T] = []

    def acted() -> T:
        done.append(act())
        return done[0]

    try:
        return _voted(ranks, acted, dict, what)[0]
    except BaseException:
        for result in done:
            undo(result)
        raise


def told_by_all(ranks: Ranks, facts: Callable[[], Mapping[str, Any]], what: str) -> list[dict[str, Any]]:
    """Return the facts of every rank, in their order, which needn't be the same. Raises as :func:`agreed`."""
    return _voted(ranks, lambda: None, facts, what)[1]


def refusing(act: Callable[[], T], ranks: Callable[[], Ranks | None], what: str) -> T:
    """Return what ``act`` returns. Where it raises, this rank votes no in whatever the others vote on next.

    For what one rank does without the others: they would wait for a rank that has gone.

    Args:
        act: checks something before the ranks meet.
        ranks: finds them; None where one process trains alone.
        what: is refused, for messages.
    """
    try:
        return act()
    except Exception as error:
        together = ranks()
        if together is not None:
            _log.error(f"rank {together.rank} is refused {what}, and tells the other ranks when they come: {error}")
            together.exchange(_ballot(what, error, {}))
        raise


def _ballot(what: str, error: Exception | None, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {"what": what, "error": "" if error is None else f"{type(error).__name__}: {error}", "facts": dict(facts)}


def _voted(
    ranks: Ranks, act: Callable[[], T], facts: Callable[[], Mapping[str, Any]], what: str
) -> tuple[T, list[dict[str, Any]]]:
    """Return what ``act`` returns, and the facts of every rank, if all of them return."""
    error: Exception | None = None
    result: Any = None
    ballot = _ballot(what, None, {})
    try:
        result = act()
        ballot = _ballot(what, None, facts())
    except Exception as caught:
        error = caught
        ballot = _ballot(what, error, {})
    everybody = ranks.exchange(ballot)
    if error is not None:
        raise error
    for rank, other in enumerate(everybody):
        if other["error"]:
            raise PrivacyViolation(f"rank {rank} refused {other['what']}, so no rank goes on. There: {other['error']}")
    for rank, other in enumerate(everybody):
        if other["what"] != what:
            raise PrivacyViolation(
                f"the ranks are at different places of the program: here (rank {ranks.rank}) all should decide on {what}, and rank "
                f"{rank} decides on {other['what']}. Run the same program on all, and catch an error on all of them or on none"
            )
    return result, [other["facts"] for other in everybody]


def digest(value: Any) -> str:
    """Return a short name for a value that JSON holds: equal values have equal names."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]

