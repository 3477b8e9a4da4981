"""What one pass of the attached model allocates, books and frees, from which the memory of every grouping follows.

The pass is made with a group for each layer, so every tensor lives as short as autograd alone allows. In another grouping
one thing is different: what a layer has booked lives on until its group's gate closes. While the layers of a group are
booked one after the other, the bytes at any moment are those of this pass plus what the group has booked so far.

Each layer is booked aside in every other way that the engine may take too, so one pass knows them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from ..autograd.gate import Gate, Group
from ..autograd.slot import Slot
from ..autograd.vmap import Part
from ..nested import tensors_in
from ..persample.base import PerSample
from ..persample.convolution import Convolution
from ..persample.dense import Dense
from ..persample.norms import AUTO, GRAM, INSTANTIATED, LAST, accumulation_dtype
from ..persample.outer import Outer
from .bookings import HALF, Booking, anew, form_of, tensors_of
from .live import Live


@dataclass(frozen=True)
class Linear:
    """A weight as a linear map: T positions, d inputs, p outputs."""

    positions: int
    inputs: int
    outputs: int


@dataclass
class Layer:
    """Holds what was seen of one layer: the group of that name in the traced pass.

    Attributes:
        window: the highest level since the layer above closed, norms of this one left out.
        floor: the same of moments at which nothing was booked: all that was there then is what autograd itself keeps.
        bookings: (level before, by norm method) of each use. ``last`` is among the methods where it does what no other does.
        choice: whether methods may differ.
        held: bytes of what it alone booked; fixed: of that, by uses in which the methods don't differ.
        shared: (number, bytes) of each storage that other layers booked too: the input of queries, keys and values.
        level: when the gate closed. closing: the most above it until it had.
        released: bytes that its closing freed. gradient: bytes of its gradients.
        linear: its weights.
    """

    name: str
    window: int = 0
    floor: int = 0
    bookings: list[tuple[int, dict[str, Booking]]] = field(default_factory=list)
    choice: bool = True
    held: int = 0
    fixed: int = 0
    shared: list[tuple[int, int]] = field(default_factory=list)
    level: int = 0
    closing: int = 0
    released: int = 0
    gradient: int = 0
    flops: int = 0
    moved: int = 0
    linear: list[Linear] = field(default_factory=list)


class Recorder(Live):
    """Live bytes, in which norms, clipped sums and gradients of parameters are told apart from the rest.

    Attributes:
        closed: layers in the order in which their gates closed: from the top of the network down.
        after: the highest level after the last gate.
        bare: the highest level after the last gate of moments at which nothing was booked.
        gradients: bytes of the gradients of parameters that are there.
    """

    def __init__(self, before: Iterable[Tensor], names: Iterable[str]) -> None:
        super().__init__(before)
        self.layers = {name: Layer(name) for name in names}
        self.closed: list[Layer] = []
        self.after = self.bare = self.gradients = 0
        self.open: set[str] = set()  # layers that have booked something
        self._quiet = False
        self._flops = self._moved = 0
        self._owners: dict[int, dict[str, Layer]] = {}  # storage -> the layers that booked it
        self._fixed: set[int] = set()  # storages that are booked whatever the method
        self._tried: dict[Any, dict[str, Booking]] = {}
        self._shared = 0  # storages of several layers so far

    @property
    def level(self) -> int:
        return self.live - self.gradients

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if self._quiet:
            count = flop_registry.get(func.overloadpacket)
            flops = 0 if count is None else count(*args, **(kwargs or {}), out_val=out)
            self._flops += flops // 2 if flops and all(t.dtype in HALF for t in tensors_in(args)) else flops
            self._moved += sum(t.numel() * t.element_size() for t in tensors_in((args, out)))
        else:
            self.after = max(self.after, self.level)
            self.bare = self.bare if self.open else max(self.bare, self.level)
        return out

    def own(self, layer: Layer, samples: PerSample, *, fixed: bool) -> None:
        """Note that ``layer`` has booked these: their storages live at least as long as its group."""
        storages = self._counted(samples)
        for storage in storages:
            self._owners.setdefault(storage, {})[layer.name] = layer
        self._fixed |= storages if fixed else set()

    def _counted(self, samples: PerSample) -> set[int]:
        """Return the storages of per-sample gradients, without those that were there before the pass."""
        found = {t.untyped_storage()._cdata for t in tensors_of(samples)}
        return {storage for storage in found if self._sizes.get(storage, 0) > 0}

    def died(self, storage: int, size: int) -> None:
        owners, fixed = list(self._owners.pop(storage, {}).values()), storage in self._fixed
        self._fixed.discard(storage)
        if len(owners) == 1:
            owners[0].held += size
            owners[0].fixed += size if fixed else 0
        elif owners:
            self._shared += 1
            for layer in owners:
                layer.shared.append((self._shared, size))

    def aside(self, work: Callable[[], Any]) -> tuple[Any, int, int, int]:
        """Run ``work`` without counting its peak: its result, that peak above the level before, FLOPs, bytes moved."""
        with self._silence():
            before, peak = self.live, self.peak
            self.peak, self._flops, self._moved = before, 0, 0
            result = work()
            top, self.peak = self.peak - before, max(peak, self.peak)
            return result, top, self._flops, self._moved

    @contextmanager
    def _silence(self) -> Iterator[None]:
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def ways(self, grads: PerSample, is_last: bool) -> dict[str, Booking]:
        """Return what each norm method does, of those that differ. ``is_last``: of the weight whose norms may come last.

        Gradients of the same form and shapes, as of another block, are tried once.
        """
        form = form_of(grads)
        if form is None:
            return self._try_ways(grads, is_last)
        if (form, is_last) not in self._tried:
            self._tried[form, is_last] = self._try_ways(grads, is_last)
        return self._tried[form, is_last]

    def _try_ways(self, grads: PerSample, is_last: bool) -> dict[str, Booking]:
        alike = anew(grads)
        kept, instantiated = self.try_booking(alike, INSTANTIATED)
        found, differs = {INSTANTIATED: instantiated}, kept is not alike
        del kept
        if differs:
            found[AUTO] = self.try_booking(anew(grads), AUTO)[1]
        if is_last:
            last = self.try_booking(anew(grads), LAST)[1]
            if last != found.get(AUTO, instantiated):
                found[LAST] = last
        if differs:
            found[GRAM] = self.try_booking(grads, GRAM)[1]
        return found

    def try_booking(self, grads: PerSample, method: str) -> tuple[PerSample, Booking]:
        """Settle per-sample gradients and form their weighted sum, both aside."""
        storages = self._counted(grads)
        before = self.live
        kept, norming, flops, moved = self.aside(lambda: grads.settle(method))
        held = self.live - before
        with self._silence():
            factors = torch.empty(kept.num_samples, dtype=accumulation_dtype(kept.dtype))
        total, closing, more, also = self.aside(lambda: kept.weighted_sum(factors))
        gradient = total.numel() * total.element_size()
        keeps = not storages.isdisjoint(self._counted(kept))
        small = kept.grads.numel() * kept.grads.element_size() if type(kept) is Dense and kept.is_small else 0
        return kept, Booking(held, keeps, small, norming, closing, gradient, flops + more, moved + also)


class TracedGroup(Group):
    """A group whose gates are traced: the groups of an engine are given this class before its first pass."""

    recorder: Recorder | None = None

    def open_gate(self) -> Gate:
        gate = super().open_gate()
        gate.__class__ = TracedGate
        return gate


class TracedGate(Gate):
    """Tells the recorder what is booked, and when the gate closes."""

    group: TracedGroup

    def book(self, slot: Slot, part: Part, grads: PerSample) -> None:
        recorder = self.group.recorder
        assert recorder is not None
        layer = recorder.layers[self.group.name]
        linear = _linear(grads)
        layer.linear += [] if linear is None else [linear]
        fixed = False
        recorder.open.add(self.group.name)
        if self.is_lone(slot):
            level = recorder.level
            ways = recorder.ways(grads, slot is self.group.last)
            layer.bookings.append((level, ways))
            fixed = len(ways) == 1
        else:  # several uses: they are joined, normed and summed when the gate closes
            layer.choice = False
        with recorder._silence():
            super().book(slot, part, grads)
        recorder.own(layer, self._booked[slot][-1][1], fixed=fixed)

    def close(self) -> list[Tensor | None]:
        recorder = self.group.recorder
        assert recorder is not None
        layer = recorder.layers[self.group.name]
        layer.window, recorder.after = max(recorder.after, recorder.level), 0
        layer.floor, recorder.bare = recorder.bare, 0
        layer.level, before = recorder.level, recorder.live
        out, layer.closing, layer.flops, layer.moved = recorder.aside(super().close)
        layer.gradient = sum(g.untyped_storage().nbytes() for g in out if g is not None)
        layer.released = before + layer.gradient - recorder.live
        recorder.gradients += layer.gradient
        recorder.closed.append(layer)
        recorder.open.discard(self.group.name)
        return out


def _linear(grads: PerSample) -> Linear | None:
    if isinstance(grads, Outer):
        return Linear(grads.positions, grads.a.shape[2], grads.g.shape[2])
    if isinstance(grads, Convolution):
        pixels = grads.x.shape[1] * prod(grads.g.shape[3:])
        return Linear(pixels, prod(grads._shape[1:]), grads.g.shape[2])
    return None


__all__ = ["Layer", "Linear", "Recorder", "TracedGate", "TracedGroup"]
