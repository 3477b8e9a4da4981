"""What a group of consecutive layers costs: bytes at its peak, and time.

Legend: layers 0, 1, .. from the top of the network down, as the backward pass meets them; a group is the layers s..e.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..persample.norms import AUTO, GRAM, INSTANTIATED
from .trace import Booking, Layer


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
    """

    method: str
    peak: int
    level: int
    held: int
    closing: int
    seconds: float
    shared: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class LayerCost:
    """A layer: the bytes of its parameters' gradients, and its options."""

    name: str
    gradient: int
    options: tuple[Option, ...]


def layer_costs(layers: Sequence[Layer], machine: Machine) -> tuple[LayerCost, ...]:
    """Return the costs of traced layers, with every norm method that differs for them."""
    return tuple(LayerCost(layer.name, layer.gradient, _options(layer, machine)) for layer in layers)


def _options(layer: Layer, machine: Machine) -> tuple[Option, ...]:
    def seconds(flops: int, moved: int) -> float:
        return flops / machine.flops_per_second + moved / machine.bytes_per_second

    shared = tuple(layer.shared)
    if not layer.choice:
        time = seconds(layer.flops, layer.moved)
        return (Option(AUTO, layer.window, layer.level, layer.held, layer.closing, time, shared),)
    two = any(GRAM in ways for _, ways in layer.bookings)
    found = []
    for method in (GRAM, INSTANTIATED) if two else (AUTO,):
        chosen = [(level, ways.get(method) or ways[INSTANTIATED], GRAM in ways) for level, ways in layer.bookings]
        time = sum(seconds(b.flops, b.moved) for _, b, _ in chosen)
        if method != INSTANTIATED:
            peak = max([layer.window, *(level + b.norming for level, b, _ in chosen)])
            found.append(Option(method, peak, layer.level, layer.held, layer.closing, time, shared))
            continue
        peak, extra = layer.window, 0
        for level, booking, differs in chosen:
            peak = max(peak, level + extra + booking.norming)
            extra += booking.held if differs else 0  # the traced pass holds the others itself
        held = sum(b.held for _, b, _ in chosen)
        found.append(Option(method, peak, layer.level - layer.released + held, held, _closing(chosen), time))
    return tuple(found)


def _closing(chosen: Sequence[tuple[int, Booking, bool]]) -> int:
    level = most = 0
    for _, booking, _ in chosen:
        most = max(most, level + booking.closing)
        level += booking.gradient - booking.held
    return most


def group_peak(layers: Sequence[LayerCost], chosen: Sequence[int], start: int, end: int) -> int:
    """Return peak bytes while the group of the layers ``start..end`` is booked and clipped; option ``chosen[i]`` of layer i.

    Gradients of the layers above are there; what the group has booked is held until its gate closes, which forms the
    clipped sums from the bottom layer up and frees what was booked for each.
    """
    before = sum(layer.gradient for layer in layers[:start])
    held = peak = closing = level = 0
    seen: dict[int, int] = {}
    for i in range(start, end + 1):
        option = layers[i].options[chosen[i]]
        peak = max(peak, option.peak + held)
        level = option.level + held
        closing = max(option.closing, layers[i].gradient - option.held + closing)
        held += option.held + sum(size for number, size in option.shared if number not in seen)
        seen |= dict(option.shared)
    return before + max(peak, level + closing)
