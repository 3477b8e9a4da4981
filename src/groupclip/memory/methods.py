"""Norm methods for the layers of a group: of all choices, those that need the least memory or, within a bound, the least time.

A group's layers are taken from the top down. A *label* is one choice so far, of which only five figures matter for what
follows: the bytes held; those on top of a level when its clipped sums are formed, at most and in the end; those that are laid side
by side before that; and the objective (peak bytes, or seconds). A label that another one beats in all of them is dropped; so the
best that is left is the best of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .cost import LayerCost

#: More labels than this are thinned out: a plan may then be slower than the best, never over the bound.
MOST_LABELS = 32


@dataclass(frozen=True, eq=False)
class _Label:
    held: int
    closing: int  # held, plus the most that the closing of these layers needs above the level before it
    formed: int  # held, plus what is there above that level when they have closed
    small: int  # held, plus copies of small gradients
    peak: int
    seconds: float
    choice: tuple[int, _Label | None]  # of the last layer, and the label before it
    seen: frozenset[int] = frozenset()  # of the storages held, those that layers to come may share

    def choices(self) -> tuple[int, ...]:
        found: list[int] = []
        label: _Label | None = self
        while label is not None:
            found.append(label.choice[0])
            label = label.choice[1]
        return tuple(reversed(found))


@dataclass(frozen=True, eq=False)
class Intervals:
    """Holds for each group s..e of layers the least cost (``inf`` if the bound can't be kept), and the choices that reach it."""

    cost: np.ndarray
    _best: dict[tuple[int, int], _Label]

    def choices(self, start: int, end: int) -> tuple[int, ...]:
        """Return the option of each layer of the group."""
        return self._best[start, end].choices()


def least_bytes(layers: Sequence[LayerCost], bound: float = math.inf) -> Intervals:
    """Return for each group the least peak over all choices of methods, where it is at most ``bound``."""
    return _intervals(layers, bound, by_time=False)


def least_at_once(layers: Sequence[LayerCost]) -> tuple[tuple[int, ...], int]:
    """Return the options with the least peak of one group of all layers, and that peak."""
    grown = _grow(layers, 0, math.inf, False, _to_come(layers))
    labels = next(labels for end, labels in grown if end == len(layers) - 1)
    label, peak = min(labels, key=lambda item: item[1])
    return label.choices(), peak


def least_seconds(layers: Sequence[LayerCost], bound: float) -> Intervals:
    """Return for each group the least time of all choices whose peak is at most ``bound``."""
    return _intervals(layers, bound, by_time=True)


def fastest(layers: Sequence[LayerCost], starts: Sequence[int], bound: float) -> tuple[int, ...]:
    """Return the options of all layers with the least time, in given groups, each with a peak of at most ``bound``.

    Raises:
        ValueError: a group can't keep the bound.
    """
    to_come, chosen = _to_come(layers), list[int]()
    ends = [*(s - 1 for s in starts[1:]), len(layers) - 1]
    for start, end in zip(starts, ends, strict=True):
        above = sum(layer.gradient for layer in layers[:start])
        grown = _grow(layers[: end + 1], start, bound - above, True, to_come)
        labels = next((found for last, found in grown if last == end), None)
        if labels is None:
            raise ValueError(f"the group of layers {start} to {end} needs more than {bound} bytes")
        chosen += min((label for label, _ in labels), key=lambda label: label.seconds).choices()
    return tuple(chosen)


def _intervals(layers: Sequence[LayerCost], bound: float, *, by_time: bool) -> Intervals:
    n = len(layers)
    cost = np.full((n, n), math.inf)
    best: dict[tuple[int, int], _Label] = {}
    above, to_come = 0, _to_come(layers)
    for start in range(n):
        for end, labels in _grow(layers, start, bound - above, by_time, to_come):
            found = min(labels, key=lambda item: item[0].seconds if by_time else item[1])
            cost[start, end] = found[0].seconds if by_time else above + found[1]
            best[start, end] = found[0]
        above += layers[start].gradient
    return Intervals(cost, best)


def _grow(
    layers: Sequence[LayerCost], start: int, bound: float, by_time: bool, to_come: Sequence[frozenset[int]]
) -> Iterator[tuple[int, list[tuple[_Label, int]]]]:
    """Yield for each end the labels of the group ``start..end`` within the bound, with their peak if the group ends there."""
    labels: list[_Label | None] = [None]
    for end in range(start, len(layers)):
        layer, grown, ending = layers[end], [], []
        for label in labels:
            held, closing, formed, small = (0,) * 4 if label is None else (label.held, label.closing, label.formed, label.small)
            peak, seconds = (0, 0.0) if label is None else (label.peak, label.seconds)
            seen = frozenset() if label is None else label.seen
            for i, option in enumerate(layer.options):
                highest = max(peak, option.peak + held)
                if highest > bound or (option.alone and label is not None):
                    continue
                more = option.held + sum(size for number, size in option.shared if number not in seen)
                known = (seen | {number for number, _ in option.shared}) & to_come[end]
                new = _Label(
                    held + more, more + max(closing, formed + option.closing), more + formed + layer.gradient - option.held,
                    more + small + option.small, highest, seconds + option.seconds, (i, label), known,
                )  # fmt: skip
                if not option.alone:
                    grown.append(new)
                total = max(highest, option.level + held + max(new.closing, new.small) - new.held)
                if total <= bound:
                    ending.append((new, total))
        if ending:
            yield end, ending
        if not grown:
            return
        labels = [label for alike in _by_seen(grown) for label in _unbeaten(alike, by_time)]


def _to_come(layers: Sequence[LayerCost]) -> list[frozenset[int]]:
    """Return for each layer the shared storages of the layers after it."""
    after: list[frozenset[int]] = []
    later: frozenset[int] = frozenset()
    for layer in reversed(layers):
        after.append(later)
        later |= {number for option in layer.options for number, _ in option.shared}
    return list(reversed(after))


def _by_seen(labels: list[_Label]) -> Iterator[list[_Label]]:
    """Yield labels that hold the same of what is still to be shared: only these can be told better and worse."""
    found: dict[frozenset[int], list[_Label]] = {}
    for label in labels:
        found.setdefault(label.seen, []).append(label)
    yield from found.values()


def _unbeaten(labels: list[_Label], by_time: bool) -> list[_Label]:
    """Return labels that no other one beats; at most :data:`MOST_LABELS`."""
    if len(labels) == 1:
        return labels
    labels.sort(key=lambda x: (x.held, x.closing, x.seconds if by_time else x.peak))
    kept: list[_Label] = []
    figures = np.empty((len(labels), 4))
    for label in labels:
        mine = label.closing, label.formed, label.small, label.seconds if by_time else label.peak
        if len(kept) and bool((figures[: len(kept)] <= mine).all(axis=1).any()):
            continue
        figures[len(kept)] = mine
        kept.append(label)
    if len(kept) > MOST_LABELS:
        step = len(kept) / MOST_LABELS
        kept = [kept[int(i * step)] for i in range(MOST_LABELS)]
    return kept
