"""One draw over the whole data set, dealt to ranks: every unit that was drawn is in the part of exactly one of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..distributed.ranks import Ranks
from .readers import Piece

#: A micro-batch that holds nobody.
NOBODY = Piece([], 0, 0)


def dealt(drawn: np.ndarray, ranks: Ranks, plan: Callable[[np.ndarray], list[Piece]]) -> list[Piece]:
    """Return the micro-batches of this rank: as many as every other rank has, so that all run in step; some may hold nobody.

    Args:
        drawn: the units of the step, the same on all ranks. They are dealt in turn, so parts differ by one unit at most.
        ranks: of the training.
        plan: from units to micro-batches.
    """
    plans = [plan(drawn[rank :: ranks.size]) for rank in range(ranks.size)]
    own = plans[ranks.rank]
    return own + [NOBODY] * (max(map(len, plans)) - len(own))
