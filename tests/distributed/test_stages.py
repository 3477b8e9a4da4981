"""What is refused of stages of ``torch.distributed.pipelining``, by name: at attach, in a schedule, and of other schedules."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import groupclip as gc
from groupclip.distributed.stages import check_sent
from groupclip.errors import UnsupportedOperation

PLAN = gc.Mechanism(dataset_size=40, expected_batch_size=8, steps=4, noise_multiplier=3.0)
REFUSED = r"PipelineStage of torch.distributed.pipelining, and not a module.*stage=.*fully_shard.*groups='per-device'"


@pytest.fixture
def stage() -> Iterator[Any]:
    """The only stage of a pipeline, in a process group of one."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    yield PipelineStage(model, 0, 1, torch.device("cpu"))
    torch.distributed.destroy_process_group()


def test_a_stage_is_no_model(stage: Any) -> None:
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.1)
    with pytest.raises(UnsupportedOperation, match=REFUSED):
        gc.attach(stage, optimizer, "all-layer", PLAN)


@pytest.mark.parametrize("alone", [True, False])
def test_a_schedule_does_not_call_an_attached_model(stage: Any, alone: bool) -> None:
    model = stage.submod
    optimizer = None if alone else torch.optim.SGD(model.parameters(), lr=0.1)
    engine = gc.attach(model, optimizer, "all-layer", None if alone else PLAN, loss_reduction="sum")
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda out, target: (out - target).square().sum())
    with pytest.raises(Exception) as caught:  # torch's own error, which has ours in it
        schedule.step(torch.randn(4, 4), target=torch.randn(4, 2))
    told = f"{caught.value} {caught.value.__cause__} {caught.value.__context__}"
    assert "is called as a stage of torch.distributed.pipelining" in told and "without stage=" in told
    assert all(p.grad is None for p in model.parameters())
    engine.backward(model(torch.randn(3, 4)).square().sum(1))  # outside of a schedule it is called as ever
    engine.detach()


def test_one_stage_is_trained_as_its_model_is(stage: Any) -> None:
    """In micro-batches that are filled up, and with an optimizer that asks for the noise of its groups."""
    x, target = torch.randn(11, 4, dtype=torch.float64), torch.randn(11, 2, dtype=torch.float64)
    model = stage.submod.double()
    twin = copy.deepcopy(model)
    plan = gc.Mechanism(dataset_size=40, expected_batch_size=8, steps=4, noise_multiplier=1e-9)

    def losses(out: Tensor, target: Tensor) -> Tensor:
        return (out - target).square().sum(1)

    optimizer = gc.NoiseAwareAdam(model.parameters(), lr=0.1)
    engine = gc.attach(model, optimizer, "layer-wise", plan, stage=stage)
    optimizer.follow(engine)
    schedule = gc.PrivateSchedule(engine, ScheduleGPipe(stage, 2, loss_fn=losses), rows=4)
    other = gc.attach(twin, torch.optim.SGD(twin.parameters(), lr=0.1), "layer-wise", plan)
    for _ in range(2):  # two micro-batches of a logical batch: of 8 rows and 3, and again
        schedule.step(x, target=target)
        other.backward(losses(twin(x), target))
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert (mine.grad - theirs.grad).abs().max() <= 1e-12  # pyright: ignore[reportOptionalOperand]
    assert {name: len(norms) for name, norms in engine.unsafe_norms().items()} == {"stage0/0": 0, "stage0/2": 0}  # filling
    optimizer.step()
    assert engine.ledger is not None and engine.ledger.steps == 1
    other.detach()
    engine.detach()


def test_what_a_stage_sends_is_what_the_next_one_awaits() -> None:
    first = torch.zeros(2, 3, requires_grad=True)
    check_sent(first * 2, (first,))
    check_sent((first.detach(), first), (first, first))  # no gradient here: the one that comes back is of no use
    for sent, refused in (
        (first[:1], r"outputs are torch.float32 \(1, 3\), and the next stage receives torch.float32 \(2, 3\)"),
        (first.double(), r"outputs are torch.float64"),
        ([first, first], r"outputs are torch.float32 \(2, 3\), torch.float32 \(2, 3\), and"),
        (None, r"outputs are NoneType"),
    ):
        with pytest.raises(UnsupportedOperation, match=refused):
            check_sent(sent, (first,))
    with pytest.raises(UnsupportedOperation, match=r"outputs \[1\] have a gradient, and those that torch saw first"):
        check_sent((first, first), (first, first.detach()))
