"""``gc.plan``: which groups and which norm methods, and what the peak will be.

The cost model of :mod:`groupclip.memory.cost` chooses; the prediction comes from one more pass without numbers, of the very
partition that was chosen (:mod:`groupclip.memory.passes`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..arguments import whole
from ..partition.choose import partition
from ..partition.groups import Partition
from ..persample.norms import AUTO
from .cost import LayerCost, Machine, group_peak, layer_costs
from .found import BudgetTooSmallError, Plan
from .methods import Intervals, fastest, least_bytes, least_seconds
from .passes import Sketched, kept_noise, optimizer_bytes
from .planner import Starts, fewest_groups, least_peak, least_sum
from .ranked import on_ranks
from .sizes import parse_bytes, show_bytes
from .workload import Loss, batch_bytes, default_loss

_TRIES = 6


def plan(
    model: nn.Module,
    example_batch: Any,
    *,
    groups: int | None = None,
    memory: str | int | None = None,
    optimizer: Optimizer | None = None,
    loss: Loss = default_loss,
    samples: int | None = None,
    machine: Machine | None = None,
    bands: int = 1,
    ranks: int = 1,
    microbatches: int = 1,
) -> Plan:
    """Choose contiguous groups of layers and their norm methods; nothing is run on numbers and nothing is changed.

    Args:
        model: not attached; its parameters may lie on the ``meta`` device.
        example_batch: what a physical batch looks like; see :func:`groupclip.memory.workload.default_loss`. Values don't matter,
            but those of rows of integers ``[B]`` (lengths, offsets, labels), which say how large what follows is.
        groups: at most so many. Without ``memory``, the plan has the least peak, and of the norm methods that reach it, in
            these groups, the fastest.
        memory: bytes of the whole device (``"12GB"``, or a number). The plan has the fewest groups that fit, and of the
            plans with so many groups the fastest.
        optimizer: its state counts, and what its step needs.
        loss: ``loss(model, example_batch)`` gives ``[B]``, the losses that training will use.
        samples: B, if not that of the example.
        machine: rates for the cost model of time.
        bands: of the mechanism: the noise of so many steps less one is kept.
        ranks, microbatches: of several processes, and of a step on each of them: the plan says then what each keeps and sends too.

    Raises:
        ValueError: neither ``groups`` nor ``memory``, or one that can't be read; micro-batches without ranks; an attached model.
        BudgetTooSmallError: nothing fits in ``memory``; says the least that does.
        UnsupportedOperation: what is computed next depends on numbers; says where.
    """
    if groups is None and memory is None:
        raise ValueError("give groups=, the most groups, or memory=, the bytes of the device, or both")
    if groups is not None and (isinstance(groups, bool) or not isinstance(groups, int) or groups < 1):
        raise ValueError(f"groups={groups!r} must be a whole number, 1 or more")
    if microbatches != 1 and ranks == 1:
        raise ValueError(f"microbatches={microbatches!r} is for what several processes send in a step: give ranks= too")
    budget = None if memory is None else parse_bytes(memory)
    planner = Planner(model, example_batch, optimizer, loss, samples, machine, bands)
    found = planner.within(budget, groups) if budget is not None else planner.least(groups)
    return found if ranks == 1 else over_ranks(found, model, ranks, microbatches, optimizer)


def over_ranks(found: Plan, model: nn.Module, ranks: int, microbatches: int, optimizer: Optimizer | None) -> Plan:
    """Return a plan that says what each of several processes keeps and sends too."""
    static, peak = found.static, found.predicted_peak
    told = on_ranks(model, ranks, microbatches, optimizer, static=static, predicted_peak=peak)
    return dataclasses.replace(found, on_ranks=told)


def planned(
    model: nn.Module, style: str, example_batch: Any, optimizer: Optimizer | None = None, bands: int = 1
) -> Partition:
    """Return the partition of a clipping style ``planned:4`` (at most so many groups) or ``planned:12GB`` (the whole device).

    Raises:
        ValueError: the style can't be read, or nothing fits; see :func:`plan`.
    """
    argument = style.partition(":")[2].strip()
    if argument.isdecimal():
        found = plan(model, example_batch, groups=int(argument), optimizer=optimizer, bands=bands)
    else:
        try:
            memory = parse_bytes(argument)
        except ValueError as error:
            raise ValueError(
                f"{style!r} can't be read: write 'planned:4' for at most 4 groups, or 'planned:12GB' for a memory"
            ) from error
        found = plan(model, example_batch, memory=memory, optimizer=optimizer, bands=bands)
    return dataclasses.replace(found.partition, style=style)


class Planner:
    """The profile of one model and batch, from which any number of plans are made. Arguments as of :func:`plan`."""

    def __init__(
        self, model: nn.Module, example_batch: Any, optimizer: Optimizer | None = None, loss: Loss = default_loss,
        samples: int | None = None, machine: Machine | None = None, bands: int = 1,
    ) -> None:  # fmt: skip
        self.sketched = Sketched(model, example_batch, loss, samples)
        self._machine = machine or Machine()
        state, self._step = optimizer_bytes(model, optimizer)
        self._kept = kept_noise(model, whole("bands", bands, least=1))
        self.static = self.sketched.static + state + self._kept
        self._layer_groups = partition(model, "layer-wise")
        self.plain = self.sketched.plain()
        self.traced = self.sketched.trace()
        self.layers: tuple[LayerCost, ...] = layer_costs(self.traced, self._machine)
        self._bytes: Intervals | None = None

    def least(self, groups: int | None = None) -> Plan:
        """Return the least peak with at most so many groups (as many as layers by default)."""
        style = f"planned:{len(self.layers) if groups is None else groups}"
        table = self._least_bytes()
        starts, peak = least_peak(table.cost, groups or len(self.layers))
        # as fast as this peak allows
        quick = fastest(self.layers, starts, peak)
        return self._plan(starts, quick, style, None)

    def within(self, memory: int, groups: int | None = None) -> Plan:
        """Return the fewest groups (at most ``groups``) that fit, and of such plans the fastest."""
        least = self.least(groups)
        if least.predicted_peak <= memory:
            room = memory - self.static - self._batch_bytes
            # The cost model is off by a percent or two: begin with a bound as much wider, and draw it in where needed.
            bound = room * max(1.0, max(least.group_peaks.values()) / least.predicted_peak) * 1.01
            for _ in range(_TRIES):
                found = self._fastest(bound, groups, memory)
                if found is None:
                    break
                if found.predicted_peak <= memory:
                    return found
                bound -= found.predicted_peak - memory
            return dataclasses.replace(least, memory=memory)
        raise BudgetTooSmallError(
            f"{show_bytes(memory)} don't suffice for {self.sketched.samples} samples"
            f"{'' if groups is None else f' in at most {groups} groups'}: the least is {show_bytes(least.predicted_peak)} "
            f"({least.predicted_peak} bytes), with {len(least.partition)} groups, "
            f"{show_bytes(self.static)} of it for parameters and optimizer. Take a smaller physical batch or more memory"
            f"{'' if groups is None else ', or more groups'}. "
            f"The partition that reaches it: {_boundaries(least.partition)}",
            least,
        )

    def _fastest(self, bound: float, groups: int | None, memory: int) -> Plan | None:
        """Plan the fewest groups that the cost model fits in ``bound``; None if that is more than ``groups``."""
        starts = fewest_groups(self._least_bytes().cost, bound)
        if starts is None or (groups is not None and len(starts) > groups):
            return None
        quick = least_seconds(self.layers, bound)
        starts = least_sum(quick.cost, len(starts))
        assert starts is not None
        return self._plan(starts, _join(quick, starts, len(self.layers)), f"planned:{memory}B", memory)

    @property
    def _batch_bytes(self) -> int:
        return batch_bytes(self.sketched._batch_of(self.sketched.samples))

    def _least_bytes(self) -> Intervals:
        if self._bytes is None:
            self._bytes = least_bytes(self.layers)
        return self._bytes

    def _plan(self, starts: Starts, choices: Sequence[int], style: str, memory: int | None) -> Plan:
        groups, methods = self.partition(starts, choices, style)
        curve = self.sketched.private(groups)
        dynamic = max(curve.peak, self._step)
        ends = [*(s - 1 for s in starts[1:]), len(self.layers) - 1]
        peaks = [
            self.static + self._batch_bytes + group_peak(self.layers, choices, s, e)
            for s, e in zip(starts, ends, strict=True)
        ]
        return Plan(
            partition=groups,
            methods=MappingProxyType(methods),
            samples=self.sketched.samples,
            static=self.static,
            predicted_peak=self.static + dynamic,
            predicted_plain=self.static - self._kept + max(self.plain.peak, self._step),
            group_peaks=MappingProxyType(dict(zip(reversed(groups.names), peaks, strict=True))),
            seconds=sum(layer.options[i].seconds for layer, i in zip(self.layers, choices, strict=True)),
            memory=memory,
            curve=curve,
            plain_curve=self.plain,
        )

    def partition(self, starts: Starts, choices: Sequence[int], style: str) -> tuple[Partition, dict[str, str]]:
        """Return groups of layers (from the top down) as a :class:`Partition`, and the methods of the layers."""
        place: dict[str, int] = {}
        for i, layer in enumerate(self.layers):
            place[layer.name] = len(starts) - 1 - (sum(i >= s for s in starts) - 1)  # group 0 is the lowest
        group, members = 0, dict[str, list[str]]()
        for name, parameters in self._layer_groups.groups:
            group = place.get(name, group)  # a layer that the pass doesn't use joins the one before it
            members.setdefault(f"group-{group + 1}", []).extend(parameters)
        sizes = {name: sum(self._numbers[p] for p in parameters) for name, parameters in members.items()}
        order = sorted(members, key=lambda name: int(name.rpartition("-")[2]))
        found = Partition(
            style, tuple((name, tuple(members[name])) for name in order), tuple(sizes[name] for name in order)
        )
        methods = {
            layer.name: layer.options[i].method
            for layer, i in zip(self.layers, choices, strict=True)
            if layer.options[i].method != AUTO
        }
        named = {
            p: methods[layer] for layer, parameters in self._layer_groups.groups if layer in methods for p in parameters
        }
        return found.with_methods(named), methods

    @property
    def _numbers(self) -> dict[str, int]:
        return {name: p.numel() for name, p in self.sketched.model.named_parameters()}


def _join(table: Intervals, starts: Starts, n: int) -> tuple[int, ...]:
    ends = [*(s - 1 for s in starts[1:]), n - 1]
    return tuple(choice for s, e in zip(starts, ends, strict=True) for choice in table.choices(s, e))


def _boundaries(groups: Partition) -> str:
    return "; ".join(f"{name} from {members[0]}" for name, members in groups.groups)


__all__ = ["BudgetTooSmallError", "Plan", "Planner", "plan", "planned"]
