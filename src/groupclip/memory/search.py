"""The search for a plan: the cost model and the named styles propose, passes without numbers decide.

The cost model of :mod:`groupclip.memory.cost` is off by up to a few per cent. So what it finds for 1, 2, .. groups is passed once
more without numbers (:mod:`groupclip.memory.passes`), and so are the named styles with as many groups: the prediction of a plan is
its own pass, and none of these passes needs less.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..arguments import whole
from ..partition.choose import partition
from ..partition.groups import Partition
from ..partition.styles import units_of
from ..persample.norms import AUTO
from .cost import LayerCost, Machine, at_least, layer_costs, peak_of
from .found import BudgetTooSmallError, Plan
from .methods import Intervals, fastest, least_at_once, least_bytes, least_seconds
from .passes import Sketched, kept_noise, optimizer_bytes
from .planner import Starts, least_peaks, least_sum
from .sizes import show_bytes
from .workload import Loss, batch_bytes, default_loss

_TRIES = 6

#: The group of each layer, 0 for the one that ends last; layers from the top of the network down.
Places = tuple[int, ...]
#: The option of each layer.
Choices = tuple[int, ...]


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
        recorder = self.sketched.trace()
        self.traced = recorder.closed
        self.layers: tuple[LayerCost, ...] = layer_costs(self.traced, self._machine)
        self._batch_bytes = batch_bytes(self.sketched._batch_of(self.sketched.samples))
        self._floor = self.static + max(max(layer.floor for layer in self.traced) + self._batch_bytes, self._step)
        self._better: dict[int, tuple[Starts, Choices, float]] = {}  # by the number of groups, up to
        self._reached = 1
        self._found: list[Plan] = []  # of at most 1, 2, .. groups
        self._passed: dict[tuple[Places, Choices], Plan] = {}

    def least(self, groups: int | None = None) -> Plan:
        """Return the least peak with at most so many groups (as many as layers by default)."""
        most = self._most(groups)
        return _named(list(self._ascending(most))[-1], f"planned:{most}", None)

    def within(self, memory: int, groups: int | None = None) -> Plan:
        """Return the fewest groups (at most ``groups``) whose least peak fits, and of plans with so many that fit the fastest."""
        least = None
        for least in self._ascending(self._most(groups)):
            if least.predicted_peak <= memory:
                return _named(self._faster(least, memory), f"planned:{memory}B", memory)
        assert least is not None
        raise BudgetTooSmallError(
            f"{show_bytes(memory)} don't suffice for {self.sketched.samples} samples"
            f"{'' if groups is None else f' in at most {groups} groups'}: the least is {show_bytes(least.predicted_peak)} "
            f"({least.predicted_peak} bytes), with {len(least.partition)} groups, "
            f"{show_bytes(self.static)} of it for parameters and optimizer. Take a smaller physical batch or more memory"
            f"{'' if groups is None else ', or more groups'}. "
            f"The partition that reaches it: {_boundaries(least.partition)}",
            _named(least, f"planned:{self._most(groups)}", None),
        )

    def _most(self, groups: int | None) -> int:
        return len(self._layer_groups) if groups is None else groups

    def _ascending(self, most: int) -> Iterator[Plan]:
        """Yield the least peak with at most 1, 2, .. groups, of plans that are as good the fastest, until no other needs less."""
        for groups in range(1, most + 1):
            if len(self._found) < groups:
                self._found.append(self._best_of(groups, most))
            yield self._found[groups - 1]
            if self._found[groups - 1].predicted_peak <= self._floor:
                return

    def _best_of(self, groups: int, most: int) -> Plan:
        """Return the better of what was found with fewer groups and what is found with so many."""
        best, places = (self._found[-1] if self._found else None), None
        for candidate in self._candidates(groups, most):
            if best is not None and best.predicted_peak <= self._floor:
                break
            if best is None or not self._needs_more(*candidate, than=best.predicted_peak):
                found = self._plan(*candidate)
                if best is None or _rank(found) < _rank(best):
                    best, places = found, candidate[0]
        assert best is not None
        return best if places is None else min(best, self._as_fast(best, places), key=_rank)

    def _candidates(self, groups: int, most: int) -> Iterator[tuple[Places, Choices]]:
        """Yield groups and methods: those of named styles with so many groups, and the cost model's."""
        if groups <= self._units:
            yield self._as_in(partition(self.sketched.model, f"uniform:{groups}"))
        if groups == len(self._layer_groups):
            yield self._as_in(self._layer_groups)
        for starts, choices, peak in self._proposed(groups, most):
            yield self._places(starts), fastest(self.layers, starts, peak)
            yield self._places(starts), choices

    def _proposed(self, groups: int, most: int) -> Iterator[tuple[Starts, Choices, float]]:
        """Yield what the cost model finds best: groups, methods and peak, if so many groups need less than fewer."""
        choices, peak = self._at_once
        if groups == 1:
            yield (0,), choices, peak
            return
        if most > self._reached:
            table = self._table
            found = least_peaks(table.cost, most)
            self._better = {len(s): (s, _join(table, s, len(self.layers)), value) for s, value in found if value < peak}
            self._reached = most
        if groups in self._better:
            yield self._better[groups]

    @cached_property
    def _at_once(self) -> tuple[Choices, int]:
        return least_at_once(self.layers)

    @cached_property
    def _table(self) -> Intervals:
        return least_bytes(self.layers, self._at_once[1])  # a group that needs more is no part of a better plan

    @cached_property
    def _units(self) -> int:
        """The most groups that ``uniform:M`` makes of the model."""
        return units_of(self.sketched.model, {n: p for n, p in self.sketched.model.named_parameters() if p.requires_grad})[1]

    def _as_in(self, groups: Partition) -> tuple[Places, Choices]:
        """Return these groups of whole layers, with the methods that the engine takes by itself."""
        first = {name: members[0] for name, members in self._layer_groups.groups}
        of = [groups.group_of(first[layer.name]) for layer in self.layers]
        order = {name: i for i, name in enumerate(dict.fromkeys(reversed(of)))}
        choices = [layer.auto[of.count(name) == 1] for layer, name in zip(self.layers, of, strict=True)]
        return tuple(order[name] for name in of), tuple(choices)

    def _needs_more(self, places: Places, choices: Choices, than: int) -> bool:
        """Return whether a pass needs more for sure."""
        groups = range(max(places) + 1)
        least = max(at_least(self.layers, choices, _members(places, group)) for group in groups)
        return self.static + self._batch_bytes + least > than

    def _as_fast(self, plan: Plan, places: Places) -> Plan:
        """Return a plan with the same groups and the fastest methods for its peak, by the cost model."""
        starts = _starts(places)
        if starts is None:
            return plan
        bound = plan.predicted_peak - self.static - self._batch_bytes
        try:
            return self._plan(places, fastest(self.layers, starts, bound))
        except ValueError:  # the cost model takes them for larger than they are
            return plan

    def _faster(self, least: Plan, memory: int) -> Plan:
        """Return the fastest plan in ``memory`` that is found, with no more groups than ``least``, which fits."""
        room = memory - self.static - self._batch_bytes
        # The cost model is off by a percent or two: begin with a bound as much wider, and draw it in where needed.
        bound = room * max(1.0, max(least.group_peaks.values()) / least.predicted_peak) * 1.01
        for _ in range(_TRIES):
            quick = least_seconds(self.layers, bound)
            starts = least_sum(quick.cost, len(least.partition))
            if starts is None:
                break
            found = self._plan(self._places(starts), _join(quick, starts, len(self.layers)))
            if found.predicted_peak <= memory:
                return min(found, least, key=lambda plan: plan.seconds)
            bound -= found.predicted_peak - memory
        return least

    def _plan(self, places: Places, choices: Choices) -> Plan:
        """Return what a pass without numbers says of these groups and methods."""
        key = places, choices
        if key in self._passed:
            return self._passed[key]
        groups, methods = self._partition(places, choices, "planned")
        curve = self.sketched.private(groups)
        peaks = {
            f"group-{group + 1}": self.static + self._batch_bytes + peak_of(self.layers, choices, _members(places, group))
            for group in range(max(places) + 1)
        }
        self._passed[key] = Plan(
            partition=groups,
            methods=MappingProxyType(methods),
            samples=self.sketched.samples,
            static=self.static,
            predicted_peak=self.static + max(curve.peak, self._step),
            predicted_plain=self.static - self._kept + max(self.plain.peak, self._step),
            group_peaks=MappingProxyType(peaks),
            seconds=sum(layer.options[i].seconds for layer, i in zip(self.layers, choices, strict=True)),
            memory=None,
            curve=curve,
            plain_curve=self.plain,
        )
        return self._passed[key]

    def partition(self, starts: Starts, choices: Sequence[int], style: str) -> tuple[Partition, dict[str, str]]:
        """Return groups of layers (from the top down) as a :class:`Partition`, and the methods of the layers."""
        return self._partition(self._places(starts), choices, style)

    def _partition(self, places: Places, choices: Sequence[int], style: str) -> tuple[Partition, dict[str, str]]:
        place = {layer.name: group for layer, group in zip(self.layers, places, strict=True)}
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

    def _places(self, starts: Starts) -> Places:
        return tuple(len(starts) - sum(i >= s for s in starts) for i in range(len(self.layers)))

    @property
    def _numbers(self) -> dict[str, int]:
        return {name: p.numel() for name, p in self.sketched.model.named_parameters()}


def _rank(plan: Plan) -> tuple[int, int, float]:
    return plan.predicted_peak, len(plan.partition), plan.seconds


def _named(plan: Plan, style: str, memory: int | None) -> Plan:
    return dataclasses.replace(plan, partition=dataclasses.replace(plan.partition, style=style), memory=memory)


def _members(places: Places, group: int) -> list[int]:
    return [i for i, place in enumerate(places) if place == group]


def _starts(places: Places) -> Starts | None:
    """Return where the groups begin, from the top down; None if one of them isn't of consecutive layers."""
    starts = [i for i, place in enumerate(places) if i == 0 or place != places[i - 1]]
    return tuple(starts) if len(starts) == len(set(places)) else None


def _join(table: Intervals, starts: Starts, n: int) -> tuple[int, ...]:
    ends = [*(s - 1 for s in starts[1:]), n - 1]
    return tuple(choice for s, e in zip(starts, ends, strict=True) for choice in table.choices(s, e))


def _boundaries(groups: Partition) -> str:
    return "; ".join(f"{name} from {members[0]}" for name, members in groups.groups)


__all__ = ["BudgetTooSmallError", "Plan", "Planner"]
