"""A stage that fails in the middle of a schedule: cases of ``test_pipeline.py``, each run in a group of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import groupclip as gc
import pipe_cases
from ddp_cases import data, plan, refusal
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


def case_other_outputs(rank: Rank) -> Any:
    """The first stage sends half as many bytes, at the second batch: the rest of the memory would hold those of other samples."""
    part, optimizer, engine, schedule, _ = pipe_cases.private(rank, Run(dtype=torch.float32), steps=2)
    x, labels = data(torch.float32)[:4]
    schedule.step(x, target=labels)
    optimizer.step()
    optimizer.zero_grad()
    if rank.rank == 0:  # as autocast does, begun late
        part.register_forward_hook(lambda *call: call[2].bfloat16())
    told = {"pass": refusal(lambda: schedule.step(x, target=labels))}
    return told | {"step": refusal(optimizer.step), "steps": engine.ledger.steps}


class Sideways(nn.Module):
    """Hands on time in front of samples, and takes it so."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).transpose(0, 1).contiguous()


def case_sideways(rank: Rank) -> Any:
    """There are as many rows as times, so lengths say nothing."""
    part = Sideways().double()
    stage = PipelineStage(part, rank.rank, rank.size, torch.device("cpu"))
    engine = gc.attach(part, torch.optim.SGD(part.parameters(), lr=0.1), "all-layer", plan(1.0), stage=stage)
    schedule = gc.PrivateSchedule(engine, ScheduleGPipe(stage, 1, loss_fn=lambda out, y: losses(out.mean(1), y)), rows=4)
    x, labels = data(torch.float64)[:4]
    return {"pass": refusal(lambda: schedule.step(x, target=labels)), "grad": part.layer.weight.grad}
