"""A stage that fails in the middle of a schedule: the case of ``test_pipeline.py`` that is run in a group of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import pipe_cases
from ddp_cases import data, refusal
from pipe_cases import Run, losses
from ranks import Rank


def case_reduced_loss(rank: Rank) -> Any:
    """The last stage has one loss for all samples, at the second batch."""
    part, optimizer, engine, schedule, _ = pipe_cases.private(rank, Run(), steps=2)
    x, labels = data(torch.float64)[:4]
    schedule.step(x, target=labels)
    optimizer.step()
    optimizer.zero_grad()
    before = [p.detach().clone().as_subclass(Tensor) for p in part.parameters()]
    schedule.schedule._loss_fn = lambda logits, labels: losses(logits, labels).mean()
    told = {"pass": refusal(lambda: schedule.step(x, target=labels)), "step": refusal(optimizer.step)}
    with torch._C.DisableTorchFunctionSubclass():
        told["moved"] = any(not torch.equal(a, b) for a, b in zip(before, part.parameters(), strict=True))
    return told | {"steps": engine.ledger.steps}
