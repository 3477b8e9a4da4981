"""One pass without numbers: the curve of live bytes of plain or private training, before anything is run.

The operations are those of the real pass, one by one, so what is counted is what a CPU run counts by the same rules
(:mod:`groupclip.memory.live`): see docs/memory.md for both side by side.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..engine.attach import attach
from ..engine.engine import Engine
from ..engine.forward import Forward
from ..nested import tensors_in
from ..noise.correlated import bytes_kept
from ..noise.jointly import SMALL, together_at_most
from ..noise.normals import workspace_bytes
from ..noise.sources import sum_dtype
from ..partition.choose import partition
from ..partition.groups import Partition
from .blanks import blank, blank_model, example
from .live import Live
from .sketch import answering, sketching
from .trace import Recorder, TracedGroup
from .workload import Loss, batch_bytes, number_of_samples, resized


@dataclass(frozen=True)
class Curve:
    """Live bytes of one pass beside parameters, buffers and optimizer state; the batch and all gradients included.

    Attributes:
        levels: after each operation, in order.
        peak: the most.
    """

    levels: tuple[int, ...]
    peak: int


def as_with_noise(engine: Engine) -> Engine:
    """Sums of half-precision parameters are kept in float32 beside their gradients, as they are where noise is to come."""
    for slot in engine._slots:
        slot.keeps_wide = True
    return engine


class Sketched:
    """A model and a batch as passes without numbers see them.

    Args:
        model: left as it is; on any device, parameters on ``meta`` included.
        batch: an example; its values don't matter.
        loss: ``loss(model, batch)`` gives ``[B]``.
        samples: B; that of the example by default.

    Raises:
        ValueError: the model is attached, or the batch holds no sample.
    """

    def __init__(self, model: nn.Module, batch: Any, loss: Loss, samples: int | None = None) -> None:
        self.model, self.loss = model, loss
        self.samples = number_of_samples(batch) if samples is None else samples
        self._batch = batch
        devices = {p.device for p in model.parameters()} - {torch.device("meta")}
        self.device = next(iter(devices), torch.device("cpu"))
        self._first: Forward | None = None

    @property
    def static(self) -> int:
        """Bytes of parameters and buffers."""
        return sum(t.numel() * t.element_size() for t in (*self.model.parameters(), *self.model.buffers()))

    def _batch_of(self, samples: int) -> Any:
        return resized(self._batch, samples, example)

    def plain(self) -> Curve:
        """Training without privacy."""
        model = blank_model(self.model)
        with sketching(self.device):
            batch = self._batch_of(self.samples)
            with Live([*model.parameters(), *model.buffers(), *tensors_in(batch)]) as live:
                losses = self.loss(model, batch)
                losses.sum().backward()
        return _curve(live, batch)

    def private(self, groups: Partition) -> Curve:
        """Clipping with these groups and methods."""
        with sketching(self.device):
            engine, batch = self._attached(groups)
            with Live([*engine.model.parameters(), *engine.model.buffers(), *tensors_in(batch)]) as live:
                losses = self.loss(engine.model, batch)
                engine.backward(losses)
        return _curve(live, batch)

    def trace(self) -> Recorder:
        """Return what every layer needs: ``closed``, from the top of the network down."""
        with sketching(self.device):
            groups = partition(self.model, "layer-wise")
            groups = groups.with_methods({name: "gram" for group in groups for name in groups[group]})
            engine, batch = self._attached(groups)
            recorder = Recorder([*engine.model.parameters(), *engine.model.buffers(), *tensors_in(batch)], groups.names)
            for group in engine._groups:
                group.__class__ = TracedGroup
                assert isinstance(group, TracedGroup)
                group.recorder = recorder
            engine._tape.report = lambda group, norms: None  # norms that are kept: of so many groups in this pass alone
            with recorder:
                engine.backward(self.loss(engine.model, batch))
        return recorder

    def _attached(self, groups: Partition) -> tuple[Engine, Any]:
        engine, batch = as_with_noise(attach(blank_model(self.model), None, groups, None)), self._batch_of(self.samples)
        if self._first is None:  # its first pass tries out which inputs hold samples, and the like; later ones know
            self.loss(engine.model, batch)
            engine._tape.forget()
            for group in engine._groups:
                group.drop_gate()
            self._first = engine._forward
        else:
            engine._forward.knows_as(self._first)
        return engine, batch


def _curve(live: Live, batch: Any) -> Curve:
    held = batch_bytes(batch)
    return Curve(tuple(level + held for level in live.curve), live.peak + held)


def _noise_bytes(model: nn.Module, dtype: torch.dtype) -> int:
    """Return the most that noise on sums of this type holds beside them."""
    sizes = [p.numel() for p in model.parameters() if p.requires_grad and sum_dtype(p.dtype) == dtype]
    together = together_at_most(sizes)
    large, small = [size for size in sizes if size > SMALL], [size for size in sizes if size <= SMALL]
    alone = workspace_bytes([max(small)], dtype) if small else 0
    copied = workspace_bytes([together], dtype) + together * dtype.itemsize if together else 0
    return max(workspace_bytes(large, dtype), alone, copied)


def kept_noise(model: nn.Module, bands: int) -> int:
    """Return bytes of earlier steps' noise that correlated noise keeps beside a model."""
    return sum(bytes_kept(p.numel(), p.dtype, bands) for p in model.parameters() if p.requires_grad)


def optimizer_bytes(model: nn.Module, optimizer: Optimizer | None) -> tuple[int, int]:
    """Return bytes of the optimizer's state, and the most that noise and the optimizer's step hold beside it, gradients included.

    The state is that after a first step, whether one was made or not.
    """
    gradients = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    dtypes = {sum_dtype(p.dtype) for p in model.parameters() if p.requires_grad}
    noise = max((_noise_bytes(model, dtype) for dtype in dtypes), default=0)
    if optimizer is None:
        return 0, gradients + noise
    memo: dict[int, Any] = {}
    for p in model.parameters():
        memo[id(p)] = nn.Parameter(blank(p), p.requires_grad)
    for held in _state(optimizer):
        memo[id(held)] = blank(held)
    hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    if any(hooks):
        raise ValueError("the optimizer has step hooks (is it attached?): plan before groupclip.attach")
    twin = copy.deepcopy(optimizer, memo)
    parameters = [memo[id(p)] for p in model.parameters()]
    with answering():
        for p in parameters:
            p.grad = torch.empty_like(p) if p.requires_grad else None
        twin.step()
        before = [*parameters, *(p.grad for p in parameters if p.grad is not None), *_state(twin)]
        with Live(before) as live:
            twin.step()
    state = sum(t.numel() * t.element_size() for t in _state(twin))
    return state, gradients + max(noise, live.peak)


def _state(optimizer: Optimizer) -> list[Tensor]:
    return [
        t for held in optimizer.state.values() if isinstance(held, Mapping) for t in tensors_in(held) if t.dim() > 0
    ]
