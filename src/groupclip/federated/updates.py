"""A client's update, clipped by group, in float64: what one client adds to the sum of a round.

Legend: R_m the threshold of group m; d_m its number of coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..clipping.functions import ClipFunction, bounded_factors, shortened
from ..partition.groups import Partition

_LEAST = 2.0**-900  # of a largest coordinate: below it quotients lose bits, so such an update counts as zero
_UNIT = 2.0**-52


def clipped_update(
    update: Mapping[str, Tensor], groups: Partition, clip: ClipFunction, thresholds: Mapping[str, float]
) -> dict[str, Tensor]:
    """Return ``update`` with each group shortened to ``R_m`` at most, in float64 on the CPU; what was given stays.

    A group that holds a number that isn't finite becomes exactly zero, as does one of zero length.

    Args:
        update: parameter name -> float tensor, of every parameter of ``groups``.
    """
    found = {}
    for group in groups.names:
        parts = [update[name].detach().to("cpu", torch.float64, copy=True) for name in groups[group]]
        factor = _factor(parts, clip, thresholds[group])
        # not a product with zero: infinity times zero is no number
        found.update(
            {name: part * factor if factor else torch.zeros_like(part) for name, part in zip(groups[group], parts, strict=True)}
        )
    return found


def _factor(parts: Sequence[Tensor], clip: ClipFunction, threshold: float) -> float:
    largest = max((float(part.abs().amax()) for part in parts if part.numel()), default=0.0)
    if not _LEAST <= largest < math.inf:  # also if it is no number
        return 0.0
    # over the largest coordinate, so that no square overflows or is lost
    scaled = math.sqrt(math.fsum(float((part / largest).square().sum()) for part in parts))
    coordinates = sum(part.numel() for part in parts)
    norms = torch.tensor([largest * scaled], dtype=torch.float64)
    if not math.isfinite(float(norms)):
        return 0.0
    room = norms * (coordinates + 16) * _UNIT  # of the roundings of squares, sums and products (Higham 2002, section 3.1)
    return float(shortened(bounded_factors(clip, norms, threshold, torch.float64), norms, room))
