"""What ranks do as stages of a pipeline: cases of ``tests/distributed/test_pipeline.py``, run by ``ranks.py``."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.microbatch import TensorChunkSpec
from torch.nn.parallel import DistributedDataParallel

import groupclip as gc
from ddp_cases import KEY, plan, refusal, whole
from ddp_cases import private as replicated
from groupclip.noise.sources import InsecureNoise, SecureNoise
from kinds import data
from pipe_models import (
    EVERY_KIND,
    EVERY_STYLE,
    SIZES,
    Run,
    build,
    data_of,
    loss_of,
    losses,
    members,
    of_whole,
    others_of,
    part_of,
)
from ranks import Rank

SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}
CHUNKS = 3


def attached(
    rank: Rank, run: Run, mechanism: gc.Mechanism, **how: Any
) -> tuple[nn.Module, Any, Any, Callable[[], gc.PrivateSchedule], PipelineStage]:
    """This rank's part, with its optimizer, engine, what makes its schedule, and torch's stage."""
    part = part_of(build(run), rank.rank, rank.size)
    stage = PipelineStage(part, rank.rank, rank.size, torch.device("cpu"))
    optimizer = torch.optim.SGD([p for p in part.parameters() if p.requires_grad], lr=0.5, momentum=0.9)
    engine = gc.attach(part, optimizer, run.style, mechanism, clip=run.clip, stage=stage, **how)
    found = loss_of(run, part)
    called = (lambda *rows: engine.per_sample(found, *rows)) if run.function else found
    schedule = SCHEDULES[run.schedule](stage, CHUNKS, loss_fn=called)
    return part, optimizer, engine, lambda: gc.PrivateSchedule(engine, schedule, rows=run.rows), stage


def train(rank: Rank, run: Run, **how: Any) -> dict[str, Any]:
    """Train without noise; return each step's sums of clipped gradients of this stage, and the weights after it."""
    mechanism = plan(expected=run.expected)
    part, optimizer, engine, make, _ = attached(rank, run, mechanism, **how)
    schedule = make()
    return _trained(run, mechanism, part, optimizer, engine, lambda x, y: schedule.step(x, target=y, **others_of(run, x)))


def train_whole(run: Run, groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The same on one process, that has the whole model."""
    mechanism, model = plan(expected=run.expected), build(run)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5, momentum=0.9)
    mapping = {name: group for group, names in groups.items() for name in names}
    engine = gc.attach(model, optimizer, mapping, mechanism, clip=run.clip)
    return _trained(run, mechanism, model, optimizer, engine, lambda x, y: engine.backward(of_whole(run, model, x, y)))


def _trained(
    run: Run, mechanism: gc.Mechanism, model: nn.Module, optimizer: Any, engine: Any, on: Callable[[Tensor, Tensor], None]
) -> dict[str, Any]:
    told: dict[str, Any] = {"sums": [], "weights": [], "sizes": []}
    for batch in gc.poisson_batches(data_of(run), mechanism, 8, key=KEY, dealt=False):
        told["sizes"].append([])
        for x, labels in batch:
            told["sizes"][-1].append(len(x))
            on(x, labels)
        optimizer.step()
        named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        told["sums"].append({n: whole(p.grad) * run.expected for n, p in named.items()})
        told["weights"].append({n: whole(p) for n, p in named.items()})
        optimizer.zero_grad()
    engine.detach()
    return told


def case_every_style(rank: Rank) -> Any:
    return {run: train(rank, run) for run in EVERY_STYLE}


def case_every_kind(rank: Rank) -> Any:
    return {run: train(rank, run) for run in EVERY_KIND}


def case_every_size(rank: Rank) -> Any:
    return {run: train(rank, run) for run in SIZES}


def private(rank: Rank, run: Run, noise: float = 1.0, steps: int = 6, source: Any = None, **how: Any) -> tuple[Any, ...]:
    """This rank's part, with its optimizer, engine, schedule and plan."""
    mechanism = plan(noise, steps=steps, expected=run.expected)
    part, optimizer, engine, make, _ = attached(rank, run, mechanism, noise=source, **how)
    return part, optimizer, engine, make(), mechanism


def thresholds_of(stages: int) -> dict[str, float]:
    """Of all-layer groups, each another."""
    return {f"stage{index}/{group}": 3.0 + index for index in range(stages) for group in gc.partition(nn.Linear(2, 2), "all-layer")}


class Wide(nn.Module):
    """A stage of many coordinates, whose gradient is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(199, 300)
        self.out = nn.Linear(300, 199, bias=False).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return 0 * self.out(self.layer(x))


def noise_of(rank: Rank, steps: int, source: Callable[[int], Any]) -> dict[str, Any]:
    """What is left of zero gradients: noise, with thresholds that differ by stage."""
    part = Wide()
    stage = PipelineStage(part, rank.rank, rank.size, torch.device("cpu"))
    optimizer = torch.optim.SGD(part.layer.parameters(), lr=0.1)
    mechanism = gc.Mechanism(dataset_size=13, expected_batch_size=4, steps=steps, noise_multiplier=2.0)
    engine = gc.attach(
        part, optimizer, "all-layer", mechanism, stage=stage, thresholds=thresholds_of(rank.size), noise=source(rank.rank)
    )
    schedule = gc.PrivateSchedule(engine, ScheduleGPipe(stage, 1, loss_fn=lambda out, _: out.sum(1)), rows=4)
    found = []
    for batch in gc.poisson_batches(torch.randn(13, 199, generator=torch.Generator().manual_seed(1)), mechanism, 4, dealt=False):
        for x in batch:
            schedule.step(x, target=x)
        optimizer.step()
        found.append(torch.cat([p.grad.flatten() for p in part.layer.parameters()]) * 4)
        optimizer.zero_grad()
    told = {"noise": found, "stds": engine.noise_stds, "own": list(engine.partition.names), "steps": engine.ledger.steps_by_sampler}
    engine.detach()
    return told


def case_noise(rank: Rank) -> Any:
    return noise_of(rank, 3, lambda _: None)


def case_noise_of_own_keys(rank: Rank) -> Any:
    """Twice under one seed on rank 0, and other ones on the others."""
    first = noise_of(rank, 1, lambda _: InsecureNoise(5))["noise"]
    return first, noise_of(rank, 1, lambda at: InsecureNoise(5 + at))["noise"]


def case_ledger(rank: Rank) -> Any:
    """One count, on batches of groupclip's; batches with nobody; a batch that is given up and comes again; an evaluation."""
    run = Run(style="uniform:2", expected=3)
    part, optimizer, engine, schedule, mechanism = private(rank, run)
    x, labels = data("net", run.dtype).tensors
    before = []
    for number, batch in enumerate(gc.poisson_batches(data("net", run.dtype), mechanism, 8, dealt=False)):
        if number == 2:
            for inputs, targets in batch:
                schedule.step(inputs, target=targets)
            engine.discard()
            assert all(p.grad is None for p in part.parameters())
            batch = batch.again(2)
        for inputs, targets in batch:
            schedule.step(inputs, target=targets)
        optimizer.step()
        optimizer.zero_grad()
        if number == 3:
            found = schedule.schedule.eval(*([x[:6]] if rank.rank == 0 else []), target=labels[:6])
            before = [found, {n: whole(p) for n, p in part.named_parameters()}]
    told = {
        "steps": engine.ledger.steps_by_sampler,
        "epsilon": engine.epsilon(delta=1e-5),
        "planned": mechanism.epsilon(delta=1e-5),
        "state": engine.state_dict(),
        "statement": engine.statement(delta=1e-5),
        "stds": engine.noise_stds,
        "evaluated": before,
    }
    engine.detach()
    told["plain"] = all(type(p) is nn.Parameter for p in part.parameters())
    told["torch's again"] = not set(vars(schedule.schedule._stage)) & {"forward_one_chunk", "scale_grads"}
    return told


def case_thresholds_move(rank: Rank) -> Any:
    """Each group's by the samples of all micro-batches, and not by rows that fill them; the noise is next to none."""
    run = Run(style="uniform:2")
    _, optimizer, engine, schedule, mechanism = private(rank, run, 1e-9, 3, thresholds=gc.Adaptive())
    found = []
    for batch in gc.poisson_batches(data("net", run.dtype), mechanism, 8, key=KEY, dealt=False):
        for x, labels in batch:
            schedule.step(x, target=labels)
        optimizer.step()
        optimizer.zero_grad()
        found.append(dict(engine.thresholds))
    engine.detach()
    return found


def moved_whole(stages: int) -> list[dict[str, float]]:
    """The same on one process."""
    run = Run(style="uniform:2")
    model, mechanism = build(run), plan(1e-9, steps=3, expected=run.expected)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    mapping = {name: group for group, names in members(run, stages).items() for name in names}
    engine = gc.attach(model, optimizer, mapping, mechanism, thresholds=gc.Adaptive())
    found = []
    for batch in gc.poisson_batches(data("net", run.dtype), mechanism, 8, key=KEY):
        for x, labels in batch:
            engine.backward(losses(model(x), labels))
        optimizer.step()
        optimizer.zero_grad()
        found.append(dict(engine.thresholds))
    engine.detach()
    return found


def case_goes_on(rank: Rank) -> Any:
    """A state is saved and loaded; noise that is hardened; a budget on rank 0."""
    run, folder = Run(style="layer-wise", schedule="1F1B"), rank.folder
    _, _, engine, _, mechanism = private(rank, run)
    state = engine.state_dict()
    state["ledger"]["steps"]["groupclip"] = 4
    engine.detach()
    budget = gc.Budget(folder / "stages.json", epsilon=50.0, delta=1e-5) if rank.rank == 0 else None
    _, optimizer, engine, schedule, _ = private(rank, run, source=gc.HardenedNoise())
    engine.load_state_dict({**state, "noise": engine.state_dict()["noise"]})
    for batch in gc.poisson_batches(data("net", run.dtype), mechanism, 8, start=engine.ledger.steps, dealt=False):
        for x, labels in batch:
            schedule.step(x, target=labels)
        optimizer.step()
        optimizer.zero_grad()
    told = {"steps": engine.ledger.steps_by_sampler, "stds": engine.noise_stds}
    engine.detach()
    _, optimizer, engine, schedule, mechanism = private(rank, run, steps=2, budget=budget)
    for batch in gc.poisson_batches(data("net", run.dtype), mechanism, 8, dealt=False):
        for x, labels in batch:
            schedule.step(x, target=labels)
        optimizer.step()
        optimizer.zero_grad()
    engine.detach()
    told["charged"] = [entry.taken for entry in budget.entries] if budget is not None else []
    return told


class Traced(PipelineStage):
    """Another class than torch's own."""


def case_refused_at_attach(rank: Rank) -> Any:
    run, odd = Run(), rank.rank == 1
    cpu = torch.device("cpu")
    part = part_of(build(run), rank.rank, rank.size)

    def stage_of(module: nn.Module = part, index: int = rank.rank, stages: int = rank.size, **how: Any) -> PipelineStage:
        return PipelineStage(module, index, stages, cpu, **how)

    def attach(
        stage: Any = None, noise: float = 1.0, module: nn.Module = part, mechanism: Any = 0, source: Any = None, **how: Any
    ) -> None:  # fmt: skip
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        mechanism = plan(noise) if mechanism == 0 else mechanism
        stage = stage_of() if stage is None else stage
        gc.attach(module, optimizer, "all-layer", mechanism, stage=stage, noise=source, **how).detach()

    def forgotten() -> None:
        """Rank 1 attaches its part as if it were the whole model."""
        optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
        gc.attach(part, optimizer, "all-layer", plan(1.0), stage=None if odd else stage_of())

    def without() -> None:
        """Rank 1 has no engine, and begins with its batches."""
        if odd:
            next(iter(gc.poisson_batches(data("net", run.dtype), plan(1.0), dealt=False)))
        else:
            attach()

    def of_another() -> None:
        mapping = {name: bound + odd for name, bound in thresholds_of(rank.size).items()}
        attach(thresholds=mapping)

    banded = gc.Mechanism(dataset_size=13, expected_batch_size=2, steps=6, noise_multiplier=1.0, bands=2, adjacency="zero-out")
    still = nn.Linear(5, 5).requires_grad_(False)
    wrapped = DistributedDataParallel(nn.Linear(5, 5))
    told = {
        "forgotten": refusal(forgotten),
        "without": refusal(without),
        "thresholds": refusal(of_another),
        "one stage's thresholds": refusal(lambda: attach(thresholds={name: 1.0 for name in list(thresholds_of(1))})),
        "plan": refusal(lambda: attach(noise=1.0 + odd)),
        "clip": refusal(lambda: attach(clip="abadi" if odd else "automatic")),
        "one rank": refusal(lambda: attach(clip="nothing" if odd else "automatic")),
        "several a rank": refusal(lambda: attach(stage_of(stages=2 * rank.size))),
        "another rank's": refusal(lambda: attach(stage_of(index=rank.size - 1 - rank.rank))),
        "another module's": refusal(lambda: attach(stage_of(nn.Linear(2, 2)))),
        "of their own": refusal(lambda: attach(Traced(part, rank.rank, rank.size, cpu))),
        "wrapped": refusal(lambda: attach(stage_of(wrapped), module=wrapped)),
        "nothing trains": refusal(lambda: gc.attach(still, None, "all-layer", plan(1.0), stage=stage_of(still))),
        "weights by hand": refusal(lambda: attach(stage_of(dw_builder=lambda: print))),
        "no plan": refusal(lambda: attach(mechanism=None)),
        "views": refusal(lambda: attach(views=2)),
        "reduction": refusal(lambda: attach(loss_reduction="mean")),
        "key": refusal(lambda: attach(source=SecureNoise(bytes(32)))),
        "bands": refusal(lambda: attach(mechanism=banded)),
        "right": refusal(attach),
    }
    told["plain"] = all(type(p) is nn.Parameter for p in part.parameters())
    return told


def case_refused_schedules(rank: Rank) -> Any:
    """What no rank begins."""
    run, odd = Run(), rank.rank == 1
    part, optimizer, engine, right, stage = attached(rank, run, plan(1.0))
    x, labels = data("net", run.dtype)[:5]

    def make(of: Any = None, rows: Any = 2, at: Any = engine) -> None:
        gc.PrivateSchedule(at, ScheduleGPipe(stage, 3, loss_fn=losses) if of is None else of, rows=rows)

    def on(*inputs: Tensor, target: Tensor = labels) -> None:
        schedule.step(*inputs, target=target)

    def without_gradients() -> None:
        with torch.no_grad():
            on(x)

    _, _, alone, _ = replicated()
    def by_hand() -> None:
        engine.backward(next(part.parameters()).square().sum().expand(5))

    told = {
        "no stage": refusal(lambda: make(at=alone)),
        "interleaved": refusal(lambda: make(ScheduleInterleaved1F1B([stage], 3, loss_fn=losses))),
        "no loss": refusal(lambda: make(ScheduleGPipe(stage, 3))),
        "cut otherwise": refusal(
            lambda: make(ScheduleGPipe(stage, 3, loss_fn=losses, kwargs_chunk_spec={"keep": TensorChunkSpec(1)}))
        ),
        "other rows": refusal(lambda: make(rows=2 + odd)),
        "no rows": refusal(lambda: make(rows=0)),
        "other micro-batches": refusal(lambda: make(ScheduleGPipe(stage, 3 + odd, loss_fn=losses))),
        "another stage's": refusal(
            lambda: make(ScheduleGPipe(PipelineStage(part, rank.rank, rank.size, torch.device("cpu")), 3, loss_fn=losses))
        ),
    }
    schedule = right()
    told |= {
        "another schedule": refusal(make),
        "torch's": refusal(lambda: schedule.schedule.step(*([x[:3]] if rank.rank == 0 else []), target=labels[:3])),
        "by itself": refusal(lambda: part(x if rank.rank == 0 else torch.randn(5, 4, 6, dtype=run.dtype))),
        "a function": refusal(lambda: engine.per_sample(lambda h: h, x)),
        "rows of another shape": refusal(lambda: on(x[:, : 4 - odd])),  # and yet those of rank 0 may come again
        "others": refusal(lambda: on(x + odd)),
        "fewer": refusal(lambda: on(x[odd:], target=labels[odd:])),
        "other labels": refusal(lambda: on(x, target=labels + odd)),
        "lengths": refusal(lambda: on(x[1:] if odd else x)),
        "no inputs": refusal(lambda: on() if odd else on(x)),
        "without gradients": refusal(without_gradients),
        "a list": refusal(lambda: schedule.step(x, target=labels, lengths=[1, 2, 3, 4, 4])),
    }
    torchs = schedule.schedule
    torchs._loss_fn = lambda logits, labels: losses(logits, labels) - losses(logits, labels).mean()
    told["mixed"] = refusal(lambda: on(x))  # its last micro-batch has a row that only fills
    torchs._loss_fn = losses
    told["mixed step"] = refusal(optimizer.step)
    engine.discard()
    told["nothing"] = all(p.grad is None for p in part.parameters())
    on(x)
    told["by hand"] = refusal(by_hand)
    told["other shapes"] = refusal(lambda: on(x[:, :3]))
    told["not cut"] = refusal(lambda: schedule.step(x, target=labels, keep=UserDict(keep=x)))
    if odd:
        part.get_parameter("back.head.bias" if rank.size == 2 else "b.norm.bias").grad.mul_(2)  # pyright: ignore
    told["scaled"] = refusal(lambda: on(x))
    told["scaled step"] = refusal(optimizer.step)
    told["steps"] = engine.ledger.steps
    alone.detach()
    engine.detach()
    engine = gc.attach(part, optimizer, run.style, plan(1.0), stage=stage)
    told["used"] = refusal(lambda: gc.PrivateSchedule(engine, schedule.schedule, rows=5))
    engine.detach()
    return told


def case_refused_batches(rank: Rank) -> Any:
    """Parts of a batch for stages, and whole batches for those who have one model; other batches than the plan's count as such."""
    run = Run()
    x, labels = data("net", run.dtype).tensors
    _, optimizer, engine, schedule, mechanism = private(rank, run)
    told = {}
    batch = next(iter(gc.poisson_batches(data("net", run.dtype), mechanism, 8)))
    list(batch)  # a part for each rank
    schedule.step(x[:4], target=labels[:4])
    told["dealt"] = refusal(optimizer.step)
    engine.detach()
    _, optimizer, engine, schedule, mechanism = private(rank, run)
    schedule.step(x[:4], target=labels[:4])
    optimizer.step()
    optimizer.zero_grad()
    told["of their own"] = engine.ledger.steps_by_sampler
    for batch in gc.poisson_batches(data("net", run.dtype), mechanism, 2, start=1, dealt=False):
        for number, (inputs, targets) in enumerate(batch):
            if not number:  # the others are left out
                schedule.step(inputs, target=targets)
        optimizer.step()
        optimizer.zero_grad()
        told["left out"] = (number, engine.ledger.steps_by_sampler)
        if number:
            break
    engine.detach()
    model, optimizer, engine, mechanism = replicated()
    batch = next(iter(gc.poisson_batches(data("net", run.dtype), mechanism, 8, dealt=False)))
    for inputs, targets in batch:
        engine.backward(losses(model(inputs), targets))
    told["whole"] = refusal(optimizer.step)
    engine.detach()
    told["padded"] = refusal(lambda: gc.logical_batches(data("net", run.dtype), mechanism, padded=True, dealt=False))
    return told
