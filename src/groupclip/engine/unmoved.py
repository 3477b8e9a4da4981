"""Weights stand still from the first backward pass of a logical batch to its step.

Until the step, the gradients of the batch have no noise. What moves weights by them (sharpness-aware minimisation, adversarial
weights, an update by hand) lets each sample's gradient depend on all the others', or releases them outright; the noise covers
neither. Between a step and the next backward pass, everything that is known has noise, and weights may be moved at will.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..autograd.slot import Slot

_MOST = 1024  # elements of a parameter that are looked at, spread over it evenly: what is moved is moved in many places


class Unmoved:
    """Remembers the weights at the first backward pass since the last step, and after that step.

    Args:
        slots: the private parameters.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._views: list[_View | None] = [None] * len(slots)
        self._released: _Look | None = None
        self._first: _Look | None = None

    def moved_since_first(self) -> list[str]:
        """Return names of parameters that are other than at the first backward pass, which this one is where there was none."""
        now = self._look()
        if self._first is None:
            self._first = now
            return []
        return self._differing(self._first, now)

    def seem_moved(self) -> list[Tensor]:
        """Ask on the devices whether :meth:`moved_at_step` may have something to say, together with other questions."""
        first = self._first
        if first is None:
            return []
        now = self._look()
        if first.homes != now.homes or first.counts != now.counts:
            return [torch.ones((), dtype=torch.bool)]
        return [(_bits(first.values[home]) != _bits(now.values[home])).any() for home in now.values]

    def moved_at_step(self) -> list[str]:
        """Return names of parameters that are other than in the backward passes, and aren't as the last step left them either."""
        if self._first is None:
            return []
        now = self._look()
        moved = self._differing(self._first, now)
        return moved if moved and (self._released is None or self._differing(self._released, now)) else []

    def release(self) -> None:
        """Remember the weights as the step leaves them: they may move from here on."""
        self._released, self._first = self._look(), None

    def forget(self) -> None:
        """Forget the logical batch, which is given up."""
        self._first = None

    def _look(self) -> _Look:
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            views: list[Tensor] = []
            for i, slot in enumerate(self._slots):
                param, known = slot.kept, self._views[i]
                at = (param.device, param.dtype, param.numel(), param.data_ptr() if param.is_contiguous() else 0)
                if known is None or known.at != at or not at[3]:
                    known = self._views[i] = _View(at, _spread(param.detach()))
                views.append(known.elements)
            homes = [(view.device, view.dtype) for view in views]
            by_home = {
                home: torch.cat([view for view, other in zip(views, homes, strict=True) if other == home])
                for home in dict.fromkeys(homes)
            }
            return _Look(homes, [view.numel() for view in views], by_home)

    def _differing(self, before: _Look, now: _Look) -> list[str]:
        if before.homes == now.homes and all(_equal(before.values[home], now.values[home]) for home in now.values):
            return []  # one comparison a dtype and device, which on a GPU is a wait
        # a model that was cast or moved has the same weights, rounded
        pairs = zip(self._slots, before.each(), now.each(), strict=True)
        return [slot.name for slot, old, new in pairs if not _equal(old.to(new.device, new.dtype), new)]


class _View(NamedTuple):
    """Elements of a weight, as a view of its memory, which is at ``at``: device, dtype, length, address (0: it can't be kept)."""

    at: tuple[torch.device, torch.dtype, int, int]
    elements: Tensor


@dataclass(frozen=True)
class _Look:
    """Elements of all weights as they were: of each its device and dtype, and how many; and copies, of each device and dtype."""

    homes: list[tuple[torch.device, torch.dtype]]
    counts: list[int]
    values: dict[tuple[torch.device, torch.dtype], Tensor]

    def each(self) -> list[Tensor]:
        """Return the elements of each weight."""
        taken = dict.fromkeys(self.values, 0)
        found: list[Tensor] = []
        for home, count in zip(self.homes, self.counts, strict=True):
            found.append(self.values[home][taken[home] : taken[home] + count])
            taken[home] += count
        return found


def some_of(weight: Tensor) -> Tensor:
    """Elements spread over it evenly, flat: a copy."""
    return _spread(weight).clone()


def _spread(weight: Tensor) -> Tensor:
    flat = weight.reshape(-1)
    every = max(1, flat.numel() // _MOST) | 1  # odd: not always the same column
    return flat[::every]


def _equal(a: Tensor, b: Tensor) -> bool:
    """Bit by bit: nan equals itself."""
    return a.dtype == b.dtype and a.device == b.device and torch.equal(_bits(a), _bits(b))


def _bits(x: Tensor) -> Tensor:
    return x.view(torch.uint8)
