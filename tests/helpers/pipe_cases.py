"""What ranks do as stages of a pipeline: cases of ``tests/distributed/test_pipeline.py``, run by ``ranks.py``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils.checkpoint import checkpoint

import groupclip as gc
from ddp_cases import KEY, plan, whole
from kinds import Block, Derived, LoRA, data
from ranks import Rank

STYLES = ("all-layer", "uniform:2", "layer-wise", "param-wise")
SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}
CHUNKS = 3


class Front(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale = nn.Linear(5, 6), nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.first(x)) * self.scale


class Back(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, h: Tensor) -> Tensor:
        return self.head(self.norm(h)).mean(1)


class Again(nn.Module):
    """Computes its block again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, h: Tensor) -> Any:
        return checkpoint(self.block, h, use_reentrant=False)


class ByPath(nn.Module):
    """Samples take one of two paths, by a value that is read on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.high, self.low = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, h: Tensor) -> Tensor:
        return self.high(h) if bool(h.sum() > 0) else self.low(h).tanh()


def _net(block: Callable[[], nn.Module]) -> nn.Sequential:
    return nn.Sequential(OrderedDict(front=Front(), a=block(), b=block(), c=block(), back=Back()))


def _frozen() -> nn.Sequential:
    model = _net(Block)
    for part in (model.front.first, model.b.inner, model.back.norm):
        part.requires_grad_(False)  # pyright: ignore[reportCallIssue, reportOptionalMemberAccess]
    return model


def _adapted() -> nn.Sequential:
    model = _net(LoRA)
    for part in (model.front, model.back):
        part.requires_grad_(False)
    return model


KINDS: dict[str, Callable[[], nn.Sequential]] = {
    "net": lambda: _net(Block),
    "frozen": _frozen,
    "lora": _adapted,
    "checkpointed": lambda: _net(Again),
    "derived": lambda: _net(Derived),
    "paths": lambda: _net(ByPath),
}


@dataclass(frozen=True)
class Run:
    """A training: of a kind of model, in a style of clipping in each stage, by a schedule."""

    kind: str = "net"
    style: str = "all-layer"
    dtype: torch.dtype = torch.float64
    schedule: str = "GPipe"
    expected: float = 7
    rows: int = 2
    clip: str = "automatic"


EVERY_STYLE = [
    Run("net", style, dtype, schedule)
    for style in STYLES
    for dtype, schedule in ((torch.float64, "GPipe"), (torch.float64, "1F1B"), (torch.float32, "1F1B"))
]
EVERY_KIND = [Run(kind, style) for kind in KINDS if kind != "net" for style in ("all-layer", "param-wise")]
SIZES = [
    Run("net", "uniform:2", expected=1),  # batches with nobody, and micro-batches that hold filling alone
    Run("net", "layer-wise", expected=13, rows=1),  # several runs of the schedule a batch
    Run("net", "layer-wise", schedule="1F1B", expected=5, rows=8, clip="flat-normalised"),
]


def build(run: Run) -> nn.Sequential:
    torch.manual_seed(0)
    return KINDS[run.kind]().to(run.dtype)


def part_of(model: nn.Sequential, index: int, stages: int) -> nn.Sequential:
    """The stage's part of the model; its parameters have the names that they have in the model."""
    cuts = {1: (0, 5), 2: (0, 2, 5), 3: (0, 2, 3, 5)}[stages]
    return model[cuts[index] : cuts[index + 1]]


def members(run: Run, stages: int) -> dict[str, list[str]]:
    """Group -> its parameters, of all stages."""
    found = {}
    for index in range(stages):
        groups = gc.partition(part_of(build(run), index, stages), run.style)
        found |= {f"stage{index}/{name}": list(groups[name]) for name in groups.names}
    return found


def losses(logits: Tensor, labels: Tensor) -> Tensor:
    """``[B]``"""
    return F.cross_entropy(logits, labels, reduction="none")


def attached(
    rank: Rank, run: Run, mechanism: gc.Mechanism, chunks: int = CHUNKS, **how: Any
) -> tuple[nn.Module, Any, Any, gc.PrivateSchedule]:
    """This rank's stage, with its optimizer, engine and schedule."""
    part = part_of(build(run), rank.rank, rank.size)
    stage = PipelineStage(part, rank.rank, rank.size, torch.device("cpu"))
    optimizer = torch.optim.SGD([p for p in part.parameters() if p.requires_grad], lr=0.5, momentum=0.9)
    engine = gc.attach(part, optimizer, run.style, mechanism, clip=run.clip, stage=stage, **how)
    schedule = SCHEDULES[run.schedule](stage, chunks, loss_fn=losses)
    return part, optimizer, engine, gc.PrivateSchedule(engine, schedule, rows=run.rows)


def train(rank: Rank, run: Run, **how: Any) -> dict[str, Any]:
    """Train without noise; return each step's sums of clipped gradients of this stage, and the weights after it."""
    mechanism = plan(expected=run.expected)
    part, optimizer, engine, schedule = attached(rank, run, mechanism, **how)
    return _trained(run, mechanism, part, optimizer, engine, lambda x, labels: schedule.step(x, target=labels))


def train_whole(run: Run, groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The same on one process, that has the whole model."""
    mechanism, model = plan(expected=run.expected), build(run)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5, momentum=0.9)
    mapping = {name: group for group, names in groups.items() for name in names}
    engine = gc.attach(model, optimizer, mapping, mechanism, clip=run.clip)
    return _trained(run, mechanism, model, optimizer, engine, lambda x, y: engine.backward(losses(model(x), y)))


def _trained(
    run: Run, mechanism: gc.Mechanism, model: nn.Module, optimizer: Any, engine: Any, on: Callable[[Tensor, Tensor], None]
) -> dict[str, Any]:
    told: dict[str, Any] = {"sums": [], "weights": [], "sizes": []}
    for batch in gc.poisson_batches(data("net", run.dtype), mechanism, 8, key=KEY, dealt=False):
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
