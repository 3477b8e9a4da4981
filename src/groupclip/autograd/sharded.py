"""Clipped sums of parameters that are cut over ranks: summed and scattered as groups close, in one order on all ranks.

A cut parameter is put together before a module runs, and its memory is gone after. So its gradient doesn't go to it: the gate's sum
goes to the ranks, and what one rank keeps of the sum over all goes to the gradient of what it keeps of the parameter.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ..distributed.shards import Shard, have_begun, scattered
from ..errors import CoverageError
from .slot import Left, Slot


@dataclass(eq=False)
class ShardedSlot(Slot):
    """A private parameter that is whole during a pass alone; ``kept`` is this rank's shard.

    Attributes:
        turns: of the engine: sums over ranks.
    """

    turns: Turns | None = None

    def hook(self) -> tuple[RemovableHandle, ...]:
        name = self.name

        def refuse(_: Tensor) -> None:
            raise CoverageError(
                f"a gradient reached what this rank keeps of {name!r}, not clipped: the parameter is used outside of the model's "
                "forward pass, where it is cut over ranks (a penalty on weights, a layer called by itself). Compute it inside the "
                "model"
            )

        self._handles = (self.param.register_hook(self.witness), self.moved.register_hook(refuse))
        self.hooked = self.param._cdata
        return self._handles

    def stand_in(self) -> Tensor:
        return self.param.detach().clone().requires_grad_(True)

    def deliver(self, total: Tensor) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Hand the gate's clipped sum to the ranks. Nothing becomes the gradient of the whole parameter."""
        assert self.turns is not None
        self.turns.arrived(self, total)

    def keep(self, total: Tensor) -> None:
        """Add this rank's part of the sum over all ranks to the gradient of the shard."""
        kept, own = self.kept, self.kept.dtype
        total = total.to(kept.device)
        if total.dtype != own and self.keeps_wide and own in (torch.bfloat16, torch.float16):
            onto = self.wide if self.left is not None and not self.left.released else None
            self.wide = total if onto is None else onto.add_(total)
        grad = kept.grad
        if grad is None:
            kept.grad = total.to(own, copy=True)  # its version is its own: parts of one sum share theirs
        else:
            grad.add_(total.to(own))
        grad = kept.grad
        self.left, self.length = Left(weakref.ref(grad), grad._version, released=False), None
        kept.note()


@dataclass(eq=False)
class Turns:
    """Sums groups over ranks, one after another: in the same order on all ranks, whatever order gates close in on one of them.

    Args:
        groups: the cut parameters of each group, in the order in which their sums are made.

    Attributes:
        roots: the modules that were cut, the outermost.
    """

    groups: Sequence[Sequence[ShardedSlot]]
    roots: Sequence[Any] = ()
    _turn: int = 0
    _waiting: dict[ShardedSlot, Tensor] = field(default_factory=dict)

    def arrived(self, slot: ShardedSlot, total: Tensor) -> None:
        """Take the clipped sum of a parameter; sum the groups that are complete and whose turn it is."""
        self._waiting[slot] = total
        while self._turn < len(self.groups) and all(one in self._waiting for one in self.groups[self._turn]):
            self._sum()

    def finish(self) -> None:
        """End a backward pass: sum the groups in which a parameter took no part on this rank. All ranks must call it."""
        while self._turn < len(self.groups):
            self._sum()
        self._turn = 0

    def forget(self) -> None:
        """Give up a pass that failed, or that nothing came of: the modules begin anew too."""
        self._turn = 0
        self._waiting.clear()
        self.take_apart()

    def take_apart(self) -> None:
        """Let the modules be put together anew in the next pass, from what each rank keeps of them now."""
        for root in self.roots:
            if have_begun(root):
                root.reset_iter_state()

    def _sum(self) -> None:
        slots = self.groups[self._turn]
        self._turn += 1
        totals: list[tuple[Shard, Tensor]] = []
        for slot in slots:
            total = self._waiting.pop(slot, None)
            shape, dtype = slot.param.shape, torch.promote_types(slot.kept.dtype, torch.float32)
            whole = torch.zeros(shape, dtype=dtype, device=slot.param.device) if total is None else total.to(dtype)
            totals.append((slot.kept, whole.view(shape)))
        for slot, part in zip(slots, scattered(totals), strict=True):
            slot.keep(part)


def turns_of(groups: Sequence[Any]) -> Turns | None:
    """Return what sums over ranks the cut parameters of an engine's groups, the last group first; None where none is cut."""
    found = [[slot for slot in group.slots if isinstance(slot, ShardedSlot)] for group in reversed(groups)]
    found = [slots for slots in found if slots]
    if not found:
        return None
    turns = Turns(found)
    for slots in found:
        for slot in slots:
            slot.turns = turns
    return turns
