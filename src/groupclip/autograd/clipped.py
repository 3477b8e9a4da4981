"""From the per-sample gradients of one group to their clipped sum: norms, factors, weighted sums (Algorithm 1, lines 6 to 9)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..clipping.functions import ClipFunction, bounded_factors, shortened
from ..persample.base import PerSample
from ..persample.small import Joint, joint
from ..persample.streamed import Streamed
from .slot import Slot


def clipped(
    grads: dict[Slot, PerSample], clip: ClipFunction, threshold: float, scale: float, totals: dict[Slot, Tensor]
) -> Tensor:
    """Clip the gradients of one group, and return their norms ``[B]``.

    Args:
        grads: of each parameter. Is emptied: what isn't needed any more is freed.
        clip, threshold: the clip function, and R of the group.
        scale: what the gradients are to be multiplied by.
        totals: the sums of clipped gradients are added to these, of each parameter flat or in its shape.
    """
    dtypes = [slot.param.dtype for slot in grads]
    parts = joint(grads)
    grads.clear()
    streamed = None
    for part in parts:
        if type(part.samples) is Streamed:
            streamed = part
    if streamed is None:
        norms, factors = norms_and_factors([part.samples for part in parts], dtypes, clip, threshold, scale)
    else:
        parts.remove(streamed)
        norms, factors = _in_blocks(streamed, [part.samples for part in parts], dtypes, clip, threshold, scale, totals)
    finite = norms < math.inf
    if not bool(finite.all()):  # zero times infinity is not zero: such samples must be left out of the products
        keep = finite.nonzero().flatten()
        factors, parts = factors[keep], [part.select(keep) for part in parts]
    while parts:
        parts.pop(0).add_to(totals, factors)
    return norms


def _in_blocks(
    streamed: Joint[Slot], others: Sequence[PerSample], dtypes: Sequence[torch.dtype], clip: ClipFunction, threshold: float,
    scale: float, totals: dict[Slot, Tensor],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return norms and factors ``[B]`` of a group. The sum of the gradients that are formed in blocks is added to ``totals``."""
    last = streamed.samples
    assert isinstance(last, Streamed)
    known, rooms, sorts = _squares_and_rooms(others)
    sorts.add(last.dtype)
    found: list[tuple[Tensor, Tensor]] = []
    for which, grads in last.blocks():
        squares = grads.square_norms().double() + (known[which] if isinstance(known, Tensor) else known)
        room = grads.square_rooms() + (rooms[which] if isinstance(rooms, Tensor) else rooms)
        norms, factors = _weighed(squares, room, len(others) + 1, dtypes, sorts, clip, threshold, scale)
        found.append((norms, factors))
        finite = norms < math.inf
        if not bool(finite.all()):  # as in the other sums
            keep = finite.nonzero().flatten()
            grads, factors = grads.select(keep), factors[keep]
        Joint(grads, streamed.keys).add_to(totals, factors)
    return torch.cat([norms for norms, _ in found]), torch.cat([factors for _, factors in found])


#: The unit roundoff of each dtype that gradients have.
_ROUNDOFF = {
    d: torch.finfo(d).eps
    for d in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex128, torch.complex64)
}


def norms_and_factors(
    grads: Sequence[PerSample], dtypes: Sequence[torch.dtype], clip: ClipFunction, threshold: float, scale: float
) -> tuple[Tensor, Tensor]:
    """Return norms ``[B]`` of the gradients of one group, and what to weigh them by.

    Args:
        grads: of each parameter.
        dtypes: of each parameter.
        clip, threshold: the clip function, and R of the group.
        scale: what the gradients are to be multiplied by; the factors contain it.
    """
    squares, rooms, sorts = _squares_and_rooms(grads)
    assert isinstance(squares, Tensor)
    return _weighed(squares, rooms, len(grads), dtypes, sorts, clip, threshold, scale)


def _squares_and_rooms(grads: Sequence[PerSample]) -> tuple[Tensor | float, Tensor | float, set[torch.dtype]]:
    """Return squared norms ``[B]`` in float64, zero without gradients; rooms; and the dtypes of the gradients."""
    squares: Tensor | float = 0.0
    rooms: Tensor | float = 0.0
    sorts: set[torch.dtype] = set()
    for g in grads:
        squares = g.square_norms().double() if isinstance(squares, float) else squares + g.square_norms()
        rooms = rooms + g.square_rooms()
        sorts.add(g.dtype)
    return squares, rooms, sorts


def _weighed(
    squares: Tensor, rooms: Tensor | float, forms: int, dtypes: Sequence[torch.dtype], sorts: set[torch.dtype], clip: ClipFunction,
    threshold: float, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return norms and factors ``[B]`` from the squared norms of a group, whose gradients have so many forms, of those dtypes."""
    norms = squares.sqrt() * scale
    kinds = set(dtypes)
    lowest = max([*kinds, *sorts], key=_ROUNDOFF.__getitem__)
    norms = norms.to(torch.float64 if torch.float64 in kinds else torch.float32)
    factors = bounded_factors(clip, norms, threshold, lowest) * scale
    rooms = rooms + 4.0 * torch.finfo(norms.dtype).tiny * forms
    room = rooms.sqrt().to(norms.dtype) if isinstance(rooms, Tensor) else rooms**0.5
    return norms, shortened(factors, norms, room * scale)
