"""A row without its training: is everything there that it needs, and what will it be? Offline, from tiny stand-ins.

Model, records and tokenizer are stand-ins with the real number of layers; the plan (records, batch size, steps, sigma) is that
of the real run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ..engine.attach import attach
from ..partition.choose import partition
from ..partition.groups import Partition
from ..privacy.mechanism import Mechanism
from .cells import PLAIN, Cell
from .source import Source, StandIn
from .workload import Workload

Build = Callable[[str, str, Source], Workload]  # (data set, model, source)


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """Says what a cell will be.

    groups: its partition; None without privacy. mechanism: its plan, with sigma; None without privacy.
    parameters: trainable coordinates of the STAND-IN, which shows that something trains. samples: of the batch that was clipped.
    """

    cell: Cell
    groups: Partition | None
    mechanism: Mechanism | None
    parameters: int
    samples: int


def dry_runs(cells: Sequence[Cell], build: Build, *, samples: int = 3) -> Iterator[DryRun]:
    """Yield every cell: build, collate, one forward and backward pass with clipped gradients, partition, calibrate.

    Raises:
        RuntimeError: a pass that leaves a trainable parameter without a gradient, or losses that aren't one per sample.
    """
    order = sorted(cells, key=lambda c: (c.data, c.model, c.clipping == PLAIN))
    for (data, model), of_one in itertools.groupby(order, key=lambda c: (c.data, c.model)):
        workload = build(data, model, StandIn())
        batch = workload.collate([workload.train[i] for i in range(samples)])
        # the rules that clip, and where samples lie, don't depend on the groups: one pass shows that both are known
        passed: set[bool] = set()
        groups: dict[str, Partition | None] = {PLAIN: None}
        for cell in of_one:
            if cell.clipping not in groups:
                groups[cell.clipping] = partition(workload.model, cell.clipping)
            found, private = groups[cell.clipping], cell.clipping != PLAIN
            if private not in passed:
                _pass(workload, batch, cell, found, samples)
                passed.add(private)
            yield DryRun(
                cell=cell, groups=found, mechanism=cell.mechanism(), samples=samples,
                parameters=sum(p.numel() for p in workload.model.parameters() if p.requires_grad),
            )  # fmt: skip


def _pass(workload: Workload, batch: object, cell: Cell, groups: Partition | None, samples: int) -> None:
    """Take one pass over the stand-in with the cell's way of clipping, and none of its noise."""
    model = workload.model.train()
    engine = None if groups is None else attach(model, None, groups, None, clip=cell.clip)
    try:
        losses = workload.losses(model, batch)
        if losses.shape != torch.Size([samples]):
            raise RuntimeError(f"{cell}: the losses have shape {tuple(losses.shape)}, not ({samples},): one a sample")
        losses.sum().backward() if engine is None else engine.backward(losses)
        without = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
        if without:
            raise RuntimeError(f"{cell}: no gradient for {', '.join(without[:5])}")
    finally:
        if engine is not None:
            engine.detach()
        model.zero_grad()
