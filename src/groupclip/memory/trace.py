"""What one pass of the attached model allocates, books and frees, from which the memory of every grouping follows.

The pass is made with a group for each layer, so every tensor lives as short as autograd alone allows. In another grouping
one thing is different: what a layer has booked lives on until its group's gate closes. While the layers of a group are
booked one after the other, the bytes at any moment are those of this pass plus what the group has booked so far.

Each layer is booked aside in the other norm method too, so one pass knows both.
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
from ..persample.norms import GRAM, INSTANTIATED, accumulation_dtype
from ..persample.outer import Outer
from .live import Live


@dataclass(frozen=True)
class Linear:
    """A weight as a linear map: T positions, d inputs, p outputs."""

    positions: int
    inputs: int
    outputs: int


@dataclass(frozen=True)
class Booking:
    """One use of one parameter in one norm method. Bytes.

    Attributes:
        held: kept until the group ends.
        norming, closing: the most above the level before, for the norms and for the clipped sum.
        gradient: of the clipped sum.
        flops, moved: floating point operations, and bytes read and written, of norms and clipped sum.
    """

    held: int
    norming: int
    closing: int
    gradient: int
    flops: int
    moved: int


@dataclass
class Layer:
    """Holds what was seen of one layer: the group of that name in the traced pass.

    Attributes:
        window: the highest level since the layer above closed, norms of this one left out.
        bookings: (level before, by norm method) of each use.
        choice: whether the two methods differ.
        held: bytes of what it alone booked.
        shared: (number, bytes) of each storage that other layers booked too: the input of queries, keys and values.
        level: when the gate closed. closing: the most above it until it had.
        released: bytes that its closing freed. gradient: bytes of its gradients.
        linear: its weights.
    """

    name: str
    window: int = 0
    bookings: list[tuple[int, dict[str, Booking]]] = field(default_factory=list)
    choice: bool = True
    held: int = 0
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
        gradients: bytes of the gradients of parameters that are there.
    """

    def __init__(self, before: Iterable[Tensor], names: Iterable[str]) -> None:
        super().__init__(before)
        self.layers = {name: Layer(name) for name in names}
        self.closed: list[Layer] = []
        self.after = self.gradients = 0
        self._quiet = False
        self._flops = self._moved = 0
        self._owners: dict[int, dict[str, Layer]] = {}  # storage -> the layers that booked it
        self._shared = 0  # storages of several layers so far

    @property
    def level(self) -> int:
        return self.live - self.gradients

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if self._quiet:
            count = flop_registry.get(func.overloadpacket)
            self._flops += 0 if count is None else count(*args, **(kwargs or {}), out_val=out)
            self._moved += sum(t.numel() * t.element_size() for t in tensors_in((args, out)))
        else:
            self.after = max(self.after, self.level)
        return out

    def own(self, layer: Layer, samples: PerSample) -> None:
        """Note that ``layer`` has booked these: their storages live at least as long as its group."""
        for tensor in _tensors(samples):
            storage = tensor.untyped_storage()
            if self._sizes.get(storage._cdata, 0) > 0:
                self._owners.setdefault(storage._cdata, {})[layer.name] = layer

    def died(self, storage: int, size: int) -> None:
        owners = list(self._owners.pop(storage, {}).values())
        if len(owners) == 1:
            owners[0].held += size
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

    def try_booking(self, grads: PerSample, method: str) -> tuple[PerSample, Booking]:
        """Settle per-sample gradients and form their weighted sum, both aside."""
        before = self.live
        kept, norming, flops, moved = self.aside(lambda: grads.settle(method))
        held = self.live - before
        with self._silence():
            factors = torch.empty(kept.num_samples, dtype=accumulation_dtype(kept.dtype))
        total, closing, more, also = self.aside(lambda: kept.weighted_sum(factors))
        gradient = total.numel() * total.element_size()
        return kept, Booking(held, norming, closing, gradient, flops + more, moved + also)


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
        if self.is_lone(slot):
            level = recorder.level
            kept, instantiated = recorder.try_booking(grads, INSTANTIATED)
            ways = {INSTANTIATED: instantiated}
            if kept is not grads:
                del kept
                ways[GRAM] = recorder.try_booking(grads, GRAM)[1]
            layer.bookings.append((level, ways))
        else:  # several uses: they are joined, normed and summed when the gate closes
            layer.choice = False
        with recorder._silence():
            super().book(slot, part, grads)
        recorder.own(layer, self._booked[slot][-1][1])

    def close(self) -> list[Tensor | None]:
        recorder = self.group.recorder
        assert recorder is not None
        layer = recorder.layers[self.group.name]
        layer.window, recorder.after = max(recorder.after, recorder.level), 0
        layer.level, before = recorder.level, recorder.live
        out, layer.closing, layer.flops, layer.moved = recorder.aside(super().close)
        layer.gradient = sum(g.untyped_storage().nbytes() for g in out if g is not None)
        layer.released = before + layer.gradient - recorder.live
        recorder.gradients += layer.gradient
        recorder.closed.append(layer)
        return out


def _tensors(samples: PerSample) -> Iterator[Tensor]:
    for value in vars(samples).values():
        if isinstance(value, PerSample):
            yield from _tensors(value)
        else:
            yield from tensors_in(value)


def _linear(grads: PerSample) -> Linear | None:
    if isinstance(grads, Outer):
        return Linear(grads.positions, grads.a.shape[2], grads.g.shape[2])
    if isinstance(grads, Convolution):
        pixels = grads.x.shape[1] * prod(grads.g.shape[3:])
        return Linear(pixels, prod(grads._shape[1:]), grads.g.shape[2])
    return None


__all__ = ["Booking", "Layer", "Linear", "Recorder", "TracedGate", "TracedGroup"]
