"""``gc.plan``: which groups and which norm methods, and what the peak will be. :mod:`groupclip.memory.search` finds them."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..partition.groups import Partition
from .cost import Machine
from .found import BudgetTooSmallError, Plan
from .ranked import on_ranks
from .search import Planner
from .sizes import parse_bytes
from .workload import Loss, default_loss


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
        groups: at most so many. Without ``memory``, the plan has the least predicted peak that was found, with the fewest groups
            that reach it, and then the fastest norm methods. No ``uniform:M`` with at most so many groups needs less, nor do
            block-wise and layer-wise where they have no more.
        memory: bytes of the whole device (``"12GB"``, or a number). The plan has the fewest groups whose least peak fits, and of
            the plans that fit with so many groups the fastest.
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


__all__ = ["BudgetTooSmallError", "Plan", "Planner", "plan", "planned"]
