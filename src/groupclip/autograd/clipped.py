"""From the per-sample gradients of one group to their clipped sum: norms, factors, weighted sums (Algorithm 1, lines 6 to 9)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..clipping.functions import ClipFunction, bounded_factors, shortened
from ..persample.base import PerSample
from ..persample.small import joint
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
    norms, factors = norms_and_factors([part.samples for part in parts], dtypes, clip, threshold, scale)
    finite = norms < math.inf
    if not bool(finite.all()):  # zero times infinity is not zero: such samples must be left out of the products
        keep = finite.nonzero().flatten()
        factors, parts = factors[keep], [part.select(keep) for part in parts]
    while parts:
        parts.pop(0).add_to(totals, factors)
    return norms


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
    squares = grads[0].square_norms().double()
    for other in grads[1:]:
        squares = squares + other.square_norms()
    norms = squares.sqrt() * scale
    kinds, sorts = set(dtypes), {g.dtype for g in grads}
    lowest = max([*kinds, *sorts], key=_ROUNDOFF.__getitem__)
    norms = norms.to(torch.float64 if torch.float64 in kinds else torch.float32)
    factors = bounded_factors(clip, norms, threshold, lowest) * scale
    rooms: Tensor | float = 4.0 * torch.finfo(norms.dtype).tiny * len(grads)
    for g in grads:
        rooms = rooms + g.square_rooms()
    room = rooms.sqrt().to(norms.dtype) if isinstance(rooms, Tensor) else rooms**0.5
    return norms, shortened(factors, norms, room * scale)
