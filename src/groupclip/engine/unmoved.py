"""Weights stand still from the first backward pass of a logical batch to its step.

Until the step, the gradients of the batch have no noise. What moves weights by them (sharpness-aware minimisation, adversarial
weights, an update by hand) lets each sample's gradient depend on all the others', or releases them outright; the noise covers
neither. Between a step and the next backward pass, everything that is known has noise, and weights may be moved at will.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..autograd.slot import Slot

_MOST = 1024  # elements of a parameter that are looked at, spread over it evenly: what is moved is moved in many places


class Unmoved:
    """What the weights were at the first backward pass since the last step, and after that step.

    Args:
        slots: the private parameters.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._released: list[Tensor] | None = None
        self._first: list[Tensor] | None = None

    def moved_since_first(self) -> list[str]:
        """Names of parameters that are other than at the first backward pass, which this one is where there was none."""
        now = self._look()
        if self._first is None:
            self._first = now
        return self._differing(self._first, now)

    def moved_at_step(self) -> list[str]:
        """Names of parameters that are other than in the backward passes, and aren't as the last step left them either."""
        if self._first is None:
            return []
        now = self._look()
        moved = self._differing(self._first, now)
        return moved if moved and (self._released is None or self._differing(self._released, now)) else []

    def release(self) -> None:
        """A step was taken."""
        self._released, self._first = self._look(), None

    def forget(self) -> None:
        """The logical batch is given up."""
        self._first = None

    def _look(self) -> list[Tensor]:
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            return [some_of(slot.param.detach()) for slot in self._slots]

    def _differing(self, before: list[Tensor], now: list[Tensor]) -> list[str]:
        pairs = zip(self._slots, before, now, strict=True)
        if len({(t.device, t.dtype) for t in (*before, *now)}) == 1 and _equal(torch.cat(before), torch.cat(now)):
            return []  # one comparison, which on a GPU is one wait
        # a model that was cast or moved has the same weights, rounded
        return [slot.name for slot, old, new in pairs if not _equal(old.to(new.device, new.dtype), new)]


def some_of(weight: Tensor) -> Tensor:
    """Elements spread over it evenly, flat: a copy."""
    flat = weight.reshape(-1)
    every = max(1, len(flat) // _MOST) | 1  # odd: not always the same column
    return flat[::every].clone()


def _equal(a: Tensor, b: Tensor) -> bool:
    """Bit by bit: nan equals itself."""
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a.view(torch.uint8), b.view(torch.uint8))
