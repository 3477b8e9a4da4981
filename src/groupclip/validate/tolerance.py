"""How far numbers may be from the truth, by the precision that they came in."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tolerance:
    """Relative bounds.

    Attributes:
        sums: of clipped sums and norms, in parts of the threshold.
        losses: of the same sample in batches of other sizes.
        same: of the same sample at the same place among as many others: nothing but the choice of a kernel differs.
    """

    sums: float
    losses: float
    same: float

    @classmethod
    def of(cls, dtype: torch.dtype) -> Tolerance:
        """Choose the tolerance by the coarsest dtype of the passes."""
        return _TOLERANCES.get(dtype, cls(0.15, 3e-2, 3e-2))

    @property
    def is_full(self) -> bool:
        """Whether it is that of full precision."""
        return self.sums < 0.1

    def loss(self, here: float, own: float, *, same: bool = False) -> bool:
        """Return whether a loss is what it should be."""
        bound = self.same if same else self.losses
        return abs(here - own) <= bound * (abs(own) + 1e-3) or (math.isnan(here) and math.isnan(own)) or here == own


_TOLERANCES = {torch.float64: Tolerance(1e-7, 1e-9, 1e-11), torch.float32: Tolerance(2e-3, 1e-4, 1e-5)}
