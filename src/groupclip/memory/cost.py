"""What a group of consecutive layers costs: bytes at its peak, and time.

Legend: layers 0, 1, .. from the top of the network down, as the backward pass meets them; a group is the layers s..e.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from ..persample.norms import AUTO, GRAM, INSTANTIATED, LAST
from .bookings import Booking
from .trace import Layer


@dataclass(frozen=True)
class Machine:
    """Rates for the cost model of time: ``flops / rate + bytes / bandwidth`` over norms and clipped sums.

    The default is one core of a server CPU of 2020 (AVX2, float32). What matters for a choice is the ratio.
    """

    flops_per_second: float = 5e10
    bytes_per_second: float = 1e10


@dataclass(frozen=True)
class Option:
    """A layer with one norm method. Bytes, gradients of parameters left out.

    Attributes:
        method: of :data:`groupclip.persample.norms.METHODS`.
        peak: the most while the gradient passes the layer, up to the end of its norms.
        level: when it has.
        held: of that, what is kept until its group ends, apart from
        shared: (number, bytes) of what other layers keep too, once for the group.
        closing: the most above ``level`` while its clipped sum is formed.
        seconds: of its norms and clipped sum.
        small: of ``held``, what is copied when the group ends, to be laid side by side.
        sure: of ``held``, what is there beside all that autograd keeps once the layer has been passed.
        alone: what the engine does with ``auto`` in a group of this layer alone; no option in other groups.
    """

    method: str
    peak: int
    level: int
    held: int
    closing: int
    seconds: float
    shared: tuple[tuple[int, int], ...] = ()
    small: int = 0
    sure: int = 0
    alone: bool = False


@dataclass(frozen=True)
class LayerCost:
    """A layer: the bytes of its parameters' gradients, and its options.

    Attributes:
        auto: the option that ``auto`` comes to in a group of several layers, and in a group of this layer alone.
        floor: bytes that autograd keeps at some moment between the layer above and this one, gradients of parameters left out.
    """

    name: str
    gradient: int
    options: tuple[Option, ...]
    auto: tuple[int, int] = (0, 0)
    floor: int = 0


def layer_costs(layers: Sequence[Layer], machine: Machine) -> tuple[LayerCost, ...]:
    """Return the costs of traced layers, with every norm method that differs for them."""
    return tuple(_costs(layer, machine) for layer in layers)


_Uses = list[tuple[int, Booking]]


def _costs(layer: Layer, machine: Machine) -> LayerCost:
    if not layer.choice:
        time = _seconds(layer.flops, layer.moved, machine)
        only = Option(AUTO, layer.window, layer.level, layer.held, layer.closing, time, tuple(layer.shared))
        return LayerCost(layer.name, layer.gradient, (only,), floor=layer.floor)
    differs = any(GRAM in ways for _, ways in layer.bookings)
    options: list[Option] = []
    met: list[_Uses] = []
    for method in (GRAM, INSTANTIATED, AUTO) if differs else (AUTO,):
        uses = _uses(layer, method)
        if uses not in met:
            met.append(uses)
            options.append(_option(layer, method, uses, machine))
    alone = _uses(layer, LAST)
    auto = met.index(_uses(layer, AUTO))
    if alone in met:
        return LayerCost(layer.name, layer.gradient, tuple(options), (auto, met.index(alone)), layer.floor)
    options.append(dataclasses.replace(_option(layer, AUTO, alone, machine), alone=True))
    return LayerCost(layer.name, layer.gradient, tuple(options), (auto, len(met)), layer.floor)


def _uses(layer: Layer, method: str) -> _Uses:
    """Return (level before, booking) of each use of the layer's parameters, with this method where there is a choice."""
    order = (method, AUTO, INSTANTIATED) if method == LAST else (method, INSTANTIATED)
    return [(level, next(ways[m] for m in order if m in ways)) for level, ways in layer.bookings]


def _seconds(flops: int, moved: int, machine: Machine) -> float:
    return flops / machine.flops_per_second + moved / machine.bytes_per_second


def _option(layer: Layer, method: str, uses: _Uses, machine: Machine) -> Option:
    time = sum(_seconds(b.flops, b.moved, machine) for _, b in uses)
    small = sum(b.small for _, b in uses)
    peak, extra = layer.window, 0
    for level, booking in uses:
        peak = max(peak, level + extra + booking.norming)
        extra += 0 if booking.keeps else booking.held
    if all(b.keeps for _, b in uses):
        closing = layer.closing if method == GRAM else _closing(uses)
        norms = sum((ways.get(GRAM) or ways[INSTANTIATED]).held for _, ways in layer.bookings)
        sure = max(0, layer.released - norms)
        return Option(method, peak, layer.level, layer.held, closing, time, tuple(layer.shared), small, sure)
    if any(b.keeps and GRAM in ways for (_, b), (_, ways) in zip(uses, layer.bookings, strict=True)):
        # some in one way, some in the other: what the traced pass holds is counted for all
        held, level, shared, sure = layer.held + extra, layer.level + extra, tuple(layer.shared), 0
    else:
        sure = sum(b.held for _, b in uses)
        held, shared = layer.fixed + sure, ()
        level = layer.level - layer.released + held
    return Option(method, peak, level, held, _closing(uses), time, shared, small, sure)


def _closing(uses: _Uses) -> int:
    level = most = 0
    for _, booking in uses:
        most = max(most, level + booking.closing)
        level += booking.gradient - booking.held
    return most


def group_peak(layers: Sequence[LayerCost], chosen: Sequence[int], start: int, end: int) -> int:
    """Return :func:`peak_of` the layers ``start..end``."""
    return peak_of(layers, chosen, range(start, end + 1))


def peak_of(layers: Sequence[LayerCost], chosen: Sequence[int], members: Sequence[int]) -> int:
    """Return peak bytes while a group of layers is booked and clipped; option ``chosen[i]`` of layer i.

    Gradients of the layers above are there; what the group has booked is held until its gate closes, which lays small gradients
    side by side, forms the clipped sums from the top layer down and frees what was booked for each. What groups in between hold
    isn't counted, where its layers aren't consecutive.
    """
    before = sum(layer.gradient for layer in layers[: members[0]])
    held = peak = closing = level = small = formed = 0
    seen: dict[int, int] = {}
    for i in members:
        option = layers[i].options[chosen[i]]
        peak = max(peak, option.peak + held)
        level = option.level + held
        closing = max(closing, formed + option.closing)
        formed += layers[i].gradient - option.held
        small += option.small
        held += option.held + sum(size for number, size in option.shared if number not in seen)
        seen |= dict(option.shared)
    return before + max(peak, level + max(closing, small))


def at_least(layers: Sequence[LayerCost], chosen: Sequence[int], members: Sequence[int]) -> int:
    """Return bytes that are there at some moment while the layers of a group are passed, whatever else is: no pass needs less."""
    before = sum(layer.gradient for layer in layers[: members[0]])
    held = most = 0
    for i in members:
        most = max(most, layers[i].floor + held)
        held += layers[i].options[chosen[i]].sure
    return before + most
