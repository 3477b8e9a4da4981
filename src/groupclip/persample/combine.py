"""Several uses of one tensor in one pass: the gradient of a sample is their SUM, and so is what is normed.

Norming the uses apart (as if they were orthogonal) is the classic fault here: tied or reused weights then keep
more than the threshold. It is right in one case, which is looked for: parts that share no entry.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from .apart import Apart
from .base import PerSample
from .dense import Dense
from .lookup import Lookup, Tied, join_lookups
from .outer import Outer, join_outers
from .pulled import Pulled, View


def combine(uses: list[PerSample]) -> PerSample:
    """Return the per-sample gradients of a tensor from those of its uses, in the cheapest form that is exact."""
    if len(uses) == 1:
        return uses[0]
    uses = [use.unpulled() if isinstance(use, Pulled) else use for use in uses]
    parts, others = _by_view(uses)
    if parts and not others and (len(parts) == 1 or _share_nothing(tuple(parts))):
        joined = [alike[0].of(combine([use.upstream for use in alike])) for alike in parts.values()]
        return joined[0] if len(joined) == 1 else Apart(joined)
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


def _by_view(uses: list[PerSample]) -> tuple[dict[View, list[Pulled]], list[PerSample]]:
    """Return the uses of parts of the tensor, by part; and the others."""
    parts: dict[View, list[Pulled]] = {}
    others: list[PerSample] = []
    for use in uses:
        view = use.view if isinstance(use, Pulled) else None
        if view is None or not isinstance(use, Pulled):
            others.append(use)
        else:
            parts.setdefault(view, []).append(use)
    return parts, others


@lru_cache(maxsize=256)
def _share_nothing(views: tuple[View, ...]) -> bool:
    """Return whether no entry is in two of the views of one tensor. A byte an entry says it for any strides."""
    taken = torch.zeros(max(view.end for view in views), dtype=torch.bool)
    for view in views:
        part = taken.as_strided(view.size, view.stride, view.offset)
        if bool(part.any()):
            return False
        part.fill_(True)
    return True
