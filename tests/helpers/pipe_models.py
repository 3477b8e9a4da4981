"""The models that are cut into stages of a pipeline, and what one training of them is."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import groupclip as gc
from kinds import Block, Derived, LoRA, data

STYLES = ("all-layer", "uniform:2", "layer-wise", "param-wise")


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


class Pair(nn.Sequential):
    """Hands on which positions of a sample count, beside what it computes."""

    def forward(self, h: Tensor, keep: Tensor | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        keep = (h.mean(2, keepdim=True) > 0).to(h.dtype) if keep is None else keep
        for part in self:
            h = part(h * keep if h.dim() == 3 else h)
        return (h, keep) if h.dim() == 3 else h


class Turned(nn.Sequential):
    """Hands on what doesn't lie in order, and whole numbers that the next stage takes for an index."""

    def forward(self, h: Tensor, marks: Tensor | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if marks is None:
            marks = (h > 0).long()[..., :1]
        else:
            h = h.transpose(1, 2)
        for part in self:
            h = part(h * h.new_tensor([0.25, 1.0])[marks] if h.dim() == 3 else h)
        return (h.transpose(1, 2), marks) if h.dim() == 3 else h


class Keyed(nn.Sequential):
    """Takes, in every stage, which positions of a sample count."""

    def forward(self, h: Tensor, keep: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        for part in self:
            h = part(h * keep)
        return h


def _net(block: Callable[[], nn.Module], kind: type[nn.Sequential] = nn.Sequential) -> nn.Sequential:
    return kind(OrderedDict(front=Front(), a=block(), b=block(), c=block(), back=Back()))


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
    "pair": lambda: _net(Block, Pair),
    "turned": lambda: _net(Block, Turned),
    "keyed": lambda: _net(Block, Keyed),
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
    penalty: bool = False  # on weights of the last stage, beside the model
    function: bool = False  # losses are a function of the samples that the engine calls
    spoiled: bool = False  # the gradients of some samples aren't finite

    def __str__(self) -> str:
        what = " ".join(name for name in ("penalty", "function", "spoiled") if getattr(self, name))
        kind = str(self.dtype).removeprefix("torch.")
        size = f"E={self.expected:g} rows={self.rows}"
        return " ".join(filter(None, [self.kind, self.style, kind, self.schedule, size, what]))


EVERY_STYLE = [
    Run("net", style, dtype, schedule)
    for style in STYLES
    for dtype, schedule in ((torch.float64, "GPipe"), (torch.float64, "1F1B"), (torch.float32, "1F1B"))
]
EVERY_KIND = [Run(kind, style) for kind in KINDS if kind != "net" for style in ("all-layer", "param-wise")]
EVERY_KIND.append(Run("net", "layer-wise", schedule="1F1B", penalty=True))
EVERY_KIND.append(Run("net", "layer-wise", penalty=True, function=True))
SIZES = [
    Run("net", "uniform:2", expected=1),  # batches with nobody, and micro-batches that hold filling alone
    Run("net", "layer-wise", expected=13, rows=1),  # several runs of the schedule a batch
    Run("net", "layer-wise", schedule="1F1B", expected=5, rows=8, clip="flat-normalised"),
    Run("net", "layer-wise", spoiled=True),
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


def data_of(run: Run) -> TensorDataset:
    found = data("net", run.dtype)
    if run.spoiled:
        found.tensors[0][::2] *= 1e200  # too large to be squared
        found.tensors[0][4] = math.inf
    return found


def others_of(run: Run, x: Tensor) -> dict[str, Tensor]:
    """What every stage takes beside."""
    return {"keep": (x.mean(2, keepdim=True) > -0.5).to(x.dtype)} if run.kind == "keyed" else {}


def losses(logits: Tensor, labels: Tensor) -> Tensor:
    """``[B]``"""
    return F.cross_entropy(logits, labels, reduction="none")


def loss_of(run: Run, part: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """The losses ``[B]`` of a run, of a model or its last stage."""
    if not run.penalty:
        return losses
    return lambda logits, labels: losses(logits, labels) + 0.3 * part.get_submodule("back.head").weight.square().sum()


def of_whole(run: Run, model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """The losses ``[B]`` of a whole model."""
    return loss_of(run, model)(model(x, **others_of(run, x)), labels)
