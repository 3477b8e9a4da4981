"""The paper's Fact on memory peaks, as a cost model of its own.

Fact (section "Peak memory profiling"): the peak of the m-th group is ``B (sum_{l <= last(m)} T_l d_l + sum_{r in m} T_r p_r)``:
all inputs of the layers not yet passed, and the output gradients of the group. It counts linear layers (convolutions as
linear maps of patches) and nothing else: no other saved tensor, no parameter gradients, no workspace.

Legend: layers 0, 1, .. in the order of the FORWARD pass here; T positions, d inputs, p outputs, B samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from .planner import Starts
from .trace import Linear


@dataclass(frozen=True)
class Fact:
    """The model of a network's linear layers, bottom first. Costs are numbers per sample."""

    layers: tuple[Linear, ...]

    @property
    def inputs(self) -> list[int]:
        """``sum_{l <= e} T_l d_l`` for every e."""
        return list(accumulate(x.positions * x.inputs for x in self.layers))

    @property
    def outputs(self) -> list[int]:
        """``sum_{l <= e} T_l p_l`` for every e."""
        return list(accumulate(x.positions * x.outputs for x in self.layers))

    def peak(self, starts: Sequence[int]) -> int:
        """Return the maximum memory peak of groups that begin (at the bottom) with these layers."""
        a, p = self.inputs, [0, *self.outputs]
        ends = [*(s - 1 for s in starts[1:]), len(self.layers) - 1]
        return max(a[e] + p[e + 1] - p[s] for s, e in zip(starts, ends, strict=True))

    def plan(self, groups: int) -> tuple[Starts, int]:
        """Return the partition into at most ``groups`` groups with the least maximum peak: bisection, with a greedy sweep.

        The cost rises as a group grows at either end, so for a bound the sweep from the top that takes all it can uses
        the fewest groups; costs are whole numbers, so bisection ends at the optimum itself.
        """
        low, high = 0, self.peak((0,))
        while low < high:
            middle = (low + high) // 2
            starts = self.sweep(middle)
            if starts is not None and len(starts) <= groups:
                high = middle
            else:
                low = middle + 1
        starts = self.sweep(high)
        assert starts is not None
        return starts, high

    def sweep(self, bound: int) -> Starts | None:
        """Return the fewest groups whose peaks are at most ``bound``; None if one layer alone exceeds it."""
        a, p = self.inputs, [0, *self.outputs]
        starts: list[int] = []
        end = len(self.layers) - 1
        while end >= 0:
            start = end
            if a[end] + p[end + 1] - p[start] > bound:
                return None
            while start > 0 and a[end] + p[end + 1] - p[start - 1] <= bound:
                start -= 1
            starts.append(start)
            end = start - 1
        return tuple(reversed(starts))
