"""Several uses of one tensor in one pass: the gradient of a sample is their SUM, and so is what is normed.

Norming the uses apart (as if they were orthogonal) is the classic fault here: tied or reused weights then keep
more than the threshold.
"""

from __future__ import annotations

from .base import PerSample
from .dense import Dense
from .lookup import Lookup, Tied, join_lookups
from .outer import Outer, join_outers


def combine(uses: list[PerSample]) -> PerSample:
    """The per-sample gradients of a tensor from those of its uses, in the cheapest form that is exact."""
    if len(uses) == 1:
        return uses[0]
    outers = [u for u in uses if isinstance(u, Outer)]
    lookups = [u for u in uses if isinstance(u, Lookup)]
    if len(outers) + len(lookups) == len(uses):
        if not lookups:
            return join_outers(outers)
        if not outers:
            return join_lookups(lookups)
        return Tied(join_lookups(lookups), join_outers(outers))
    total = uses[0].instantiate()
    for use in uses[1:]:
        total = total + use.instantiate()
    return Dense(total)
