"""Small parameters of one group, of which a model has hundreds: their gradients are normed and summed together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ..packing import by_room
from .base import PerSample
from .dense import SMALL, Dense

Key = TypeVar("Key", bound=Hashable)

_ROOM = 1 << 16  # numbers that are laid side by side at most: the copy is as good as free


@dataclass(frozen=True, eq=False)
class Joint(Generic[Key]):
    """Gradients with respect to some tensors.

    Attributes:
        samples: of all of them, side by side as one tensor; of a lone one as it is.
        keys: whose; widths: how many entries each of them has.
    """

    samples: PerSample
    keys: tuple[Key, ...]
    widths: tuple[int, ...] = ()

    def sums(self, factors: Tensor) -> Iterable[tuple[Key, Tensor]]:
        """Return each tensor's weighted sum, flat or in its shape. They are no views: a change of one would count as one of all."""
        total = self.samples.weighted_sum(factors)
        if not self.widths:
            return ((self.keys[0], total),)
        return zip(self.keys, map(torch.clone, total.split(self.widths)), strict=True)

    def add_to(self, totals: dict[Key, Tensor], factors: Tensor) -> None:
        """Add each tensor's weighted sum to those in ``totals``."""
        if self.widths:
            for key, total in self.sums(factors):
                totals[key] = totals[key].add_(total.reshape(totals[key].shape)) if key in totals else total
            return
        key = self.keys[0]
        if key not in totals:
            totals[key] = self.samples.weighted_sum(factors)
        else:
            self.samples.add_to(totals[key], factors)

    def select(self, index: Tensor) -> Joint[Key]:
        return Joint(self.samples.select(index), self.keys, self.widths)


def joint(grads: Mapping[Key, PerSample]) -> list[Joint[Key]]:
    """Return the gradients of one group, the small ones together. A norm that is known already isn't computed again."""
    alone: list[Joint[Key]] = []
    small: dict[tuple[torch.dtype, torch.device], list[tuple[Key, Dense]]] = {}
    for key, samples in grads.items():
        if type(samples) is Dense and samples.is_small:
            small.setdefault((samples.grads.dtype, samples.grads.device), []).append((key, samples))
        else:
            alone.append(Joint(samples, (key,)))
    for found in small.values():
        if len(found) * SMALL <= _ROOM:
            alone.append(_side_by_side(found))
        else:
            alone += map(_side_by_side, by_room(found, _numbers, _ROOM))
    return alone


def _numbers(one: tuple[Key, Dense]) -> int:
    return one[1].grads.numel()


def _side_by_side(few: Sequence[tuple[Key, Dense]]) -> Joint[Key]:
    if len(few) == 1:
        return Joint(few[0][1], (few[0][0],))
    rows = [samples.rows() for _, samples in few]
    together = torch.cat(rows, dim=1)
    return Joint(Dense(together), tuple([key for key, _ in few]), tuple([one.shape[1] for one in rows]))
