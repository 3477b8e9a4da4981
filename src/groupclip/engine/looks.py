"""Statistics of single samples without noise, and a note of who looked at them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


class Looks:
    """The norms of the last backward pass, and the names of all that was looked at.

    Args:
        groups: names of the groups.
        thresholds: R_m by group.
    """

    def __init__(self, groups: Iterable[str], thresholds: Mapping[str, float]) -> None:
        self._groups, self._thresholds = tuple(groups), thresholds
        self.taken: set[str] = set()
        self.norms: dict[str, Tensor] = {}

    def take(self, what: str) -> None:
        """Note that somebody looked at ``what``. ValueError for an empty name."""
        if not what.strip():
            raise ValueError("unsafe_look needs the name of what was looked at, as the statement will tell it")
        self.taken.add(" ".join(what.split()))

    def at_norms(self) -> dict[str, Tensor]:
        """Return norms ``[B]`` by group; zero for a group that took no part."""
        self.take("per-sample gradient norms")
        return self._last()

    def at_clip_fractions(self) -> dict[str, float]:
        """Return share of samples beyond the threshold, by group; 0 for an empty batch."""
        self.take("share of gradients that were clipped")
        return {
            group: float((norms > self._thresholds[group]).double().mean()) if len(norms) else 0.0
            for group, norms in self._last().items()
        }

    def _last(self) -> dict[str, Tensor]:
        batch = max((len(n) for n in self.norms.values()), default=0)
        return {name: self.norms.get(name, torch.zeros(batch)) for name in self._groups}
