"""The samples of the logical batch under way: how many each group saw, how many act, and what the model was called with. Secret."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from ..sampling.claims import Owner
from ..sampling.marks import Marks, marks


class SamplesSeen:
    """Counts the samples that were clipped since the last step.

    Args:
        owner: the engine, as its plan knows it; None for clipping alone.

    Attributes:
        counts: group -> samples since the last step.
        passes: what the model was called with in the passes since the last step.
    """

    def __init__(self, owner: Owner | None) -> None:
        self._owner = owner
        self.counts: Counter[str] = Counter()
        self.passes: list[Marks] = []
        self._called: Marks | None = None  # what the model was last called with
        self._norms: list[tuple[str, Tensor]] = []  # of the pass under way, by group
        # groups -> how many samples had a gradient other than zero in each
        self._acting: dict[tuple[str, ...], Tensor] = {}

    @property
    def most(self) -> int:
        """The samples of the group that saw most of them."""
        return _most(self.counts)

    def forget(self) -> None:
        """Begin anew: these samples were released, or given up."""
        self.counts.clear()
        self._acting.clear()
        self._norms.clear()
        self.passes.clear()

    def saw(self, group: str, norms: Tensor) -> None:
        """Hear that a group clipped samples of the logical batch; their gradients there have these norms ``[B]``."""
        self.counts[group] = self.counts.get(group, 0) + norms.shape[0]
        if self._owner is not None:  # a pass that no step follows may be of tensors without numbers (groupclip.memory)
            self._norms.append((group, norms))

    def _count(self) -> None:
        """Add those of the last pass that act to the logical batch's, of all groups at once."""
        alike: dict[tuple[int, torch.device], list[tuple[str, Tensor]]] = {}
        for group, norms in self._norms:
            alike.setdefault((norms.shape[0], norms.device), []).append((group, norms))
        self._norms.clear()
        for found in alike.values():
            groups, norms = tuple([group for group, _ in found]), torch.stack([norms for _, norms in found])
            acting = ((norms > 0) & (norms < math.inf)).sum(dim=1)
            self._acting[groups] = self._acting[groups] + acting if groups in self._acting else acting

    def called(self, batch: Tensor) -> None:
        """Hear that the model is called with this batch, and that gradients are recorded."""
        self._called = marks(batch) if self._owner is not None and self._owner.draws() else None

    def passed(self) -> None:
        """Hear that a backward pass of the last call adds to the logical batch."""
        self._count()
        if self._called is not None:
            self.passes.append(self._called)
            self._called = None

    def seen(self) -> Counter[str]:
        """Return what :meth:`back_to` goes back to when a backward pass fails: its samples may come again. Secret."""
        self._count()
        return self.counts.copy()

    def back_to(self, seen: Counter[str]) -> None:
        """Forget the samples of the backward pass that failed."""
        self.counts = seen
        self._norms.clear()

    def ask(
        self, sums: Sequence[Tensor], flags: Sequence[Tensor], lengths: Sequence[Tensor | None] | None = None
    ) -> tuple[int, bool, bool]:
        """Return the most samples that act in a group, if the sums are finite, and if a flag is set: one read of the device.

        Nothing of a sum's size is made.

        Args:
            sums: of clipped gradients.
            flags: booleans without dimensions.
            lengths: of each sum; None where it isn't known.
        """
        self._count()
        filled = [total for total in sums if total.numel()]
        given = [None] * len(sums) if lengths is None else lengths
        known = [length for length in given if length is not None]
        unknown = [total for total, length in zip(sums, given, strict=True) if length is None and total.numel()]
        numbers = [*self._acting.values(), *flags, *known, *_lengths(unknown)]
        if not numbers:
            return 0, True, False
        home = numbers[0].device
        told = torch.cat([number.to(home, torch.float64).view(-1) for number in numbers]).tolist()
        counts: Counter[str] = Counter()
        for groups in self._acting:
            for group in groups:
                counts[group] += int(told.pop(0))
        flagged, norms = told[: len(flags)], told[len(flags) :]
        finite = all(map(math.isfinite, norms)) or _are_finite(filled)
        return _most(counts), finite, any(flagged)


def _lengths(sums: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the 2-norms, twenty times as quick as the largest numbers on the CPU. Of a finite sum, one may overflow."""
    return torch._foreach_norm(sums, 2) if sums else ()  # pyright: ignore[reportPrivateImportUsage, reportArgumentType]


def _are_finite(sums: Sequence[Tensor]) -> bool:
    largest = torch._foreach_norm(sums, math.inf)  # pyright: ignore[reportPrivateImportUsage, reportArgumentType]
    return all(math.isfinite(float(one)) for one in largest)


def _most(counts: Counter[str]) -> int:
    return max(counts.values(), default=0)
