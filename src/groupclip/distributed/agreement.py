"""What the ranks must agree on before anything is released: one training, one plan, one ledger."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..errors import PrivacyViolation
from .ranks import Ranks

T = TypeVar("T")


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
    error: Exception | None = None
    result: Any = None
    told: dict[str, Any] = {"error": "", "facts": {}}
    try:
        result = act()
        told["facts"] = dict(facts())
    except Exception as caught:
        error = caught
        told["error"] = f"{type(caught).__name__}: {caught}"
    everybody = ranks.exchange(told)
    if error is not None:
        raise error
    for rank, other in enumerate(everybody):
        if other["error"]:
            raise PrivacyViolation(f"rank {rank} refused {what}, so no rank takes it. There: {other['error']}")
    for rank, other in enumerate(everybody):
        differing = [name for name in told["facts"] if other["facts"].get(name) != _as_told(told["facts"][name])]
        if differing:
            name = differing[0]
            raise PrivacyViolation(
                f"the ranks don't agree on {name}, so none takes {what}: here (rank {ranks.rank}) it is "
                f"{told['facts'][name]!r}, on rank {rank} {other['facts'].get(name)!r}. Several processes make one training: "
                "run the same program on all, and load the same state into all"
            )
    return result


def digest(value: Any) -> str:
    """Return a short name for a value that JSON holds: equal values have equal names."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _as_told(value: Any) -> Any:
    return json.loads(json.dumps(value))
