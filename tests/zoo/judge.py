"""An entry of the zoo, trained for one pass and judged by the loop over single samples.

The error is relative to what a sample may contribute: sums to the group's threshold, norms to the group's largest
norm. The thresholds are such that some samples of the batch are clipped and others aren't.

Float64 is float64 all through: many families cast to float32 inside (``x.float()``, ``softmax(.., dtype=torch.float32)``),
which would hide errors up to 1e-7, so there the casts go to float64. The float32 runs are of the models as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
import oracle
from check_engine import between, gradients, members
from groupclip.autograd.operation import DERIVED, RULE
from models import Batch, Entry

B = 4
STYLES = ("all-layer", "block-wise", "layer-wise", "param-wise")
SEED = 0  # of the weights; the batch's is 1

#: A group whose gradient is this much smaller than the sample's whole gradient is zero but for rounding (the bias of
#: attention's keys, which softmax doesn't see): it is judged against the whole.
NOTHING = {torch.float64: 1e-12, torch.float32: 1e-4}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


@contextmanager
def no_float32() -> Iterator[None]:
    """Casts to float32 that models make, whatever their dtype, go to float64."""
    softmax = F.softmax

    def wide_softmax(*args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
        return softmax(*args, dtype=torch.float64 if dtype is torch.float32 else dtype, **kwargs)

    with patch.object(Tensor, "float", Tensor.double), patch.object(F, "softmax", wide_softmax):
        yield


class Ways:
    """Observes a pass: how each operation on parameters was split by sample, and how each parameter was normed."""

    def __init__(self) -> None:
        self.operations: dict[str, set[str]] = {}
        self.norms: dict[str, str] = {}

    def used(self, parameters: Sequence[str], operation: str, way: str) -> None:
        self.operations.setdefault(way, set()).add(operation.strip("_"))

    def normed(self, parameter: str, method: str) -> None:
        self.norms[parameter] = method


@dataclass(frozen=True)
class Verdict:
    """How far from the oracle one pass was.

    Attributes:
        norms: largest error of a sample's norm, relative to the largest norm of its group.
        sums: largest error of a clipped sum's entry, relative to the group's threshold.
        losses: largest difference that attaching makes to a loss, relative.
        operations: way -> operations on parameters that were split by sample in that way.
        methods: how norms were computed -> number of parameters.
    """

    norms: float
    sums: float
    losses: float
    operations: Mapping[str, tuple[str, ...]]
    methods: Mapping[str, int]

    @property
    def worst(self) -> float:
        return max(self.norms, self.sums, self.losses)

    @property
    def without_rule(self) -> dict[str, tuple[str, ...]]:
        """Way -> operations, of those that no closed form covers."""
        return {way: names for way, names in self.operations.items() if way not in (RULE, DERIVED)}


def shapes_of(model: nn.Module) -> dict[str, torch.Size]:
    return {name: p.shape for name, p in model.named_parameters() if p.requires_grad}


@dataclass(frozen=True)
class Truth:
    """What is right for an entry, in float64: losses [B], and for each sample parameter -> gradient."""

    losses: Tensor
    samples: list[dict[str, Tensor]]
    shapes: dict[str, torch.Size]


@functools.lru_cache(maxsize=2)
def truth(entry: Entry) -> Truth:
    model, batch = entry.model(torch.float64, SEED), entry.batch(B, torch.float64)
    with no_float32():
        losses = torch.cat([entry.losses(model, tuple(t[i : i + 1] for t in batch)) for i in range(B)])
        return Truth(losses.detach(), oracle.per_sample_gradients(model, entry.losses, batch), shapes_of(model))


def judge(entry: Entry, style: str, dtype: torch.dtype = torch.float64) -> Verdict:
    """Run the engine on the entry in that style, and compare losses, norms and clipped sums."""
    right = truth(entry)
    model, batch = entry.model(dtype, SEED), entry.batch(B, dtype)
    groups = gc.partition(model, style)
    named = members(groups)
    norms = oracle.clipped(right.samples, right.shapes, named).norms
    whole = float(torch.stack([n.square() for n in norms.values()]).sum(0).sqrt().max())
    empty = {group for group, n in norms.items() if float(n.max()) < NOTHING[dtype] * whole}
    thresholds = between(norms) | dict.fromkeys(empty, whole)
    want = oracle.clipped(right.samples, right.shapes, named, "abadi", thresholds)

    with no_float32() if dtype is torch.float64 else nullcontext():
        losses, got, ours, ways = _observed_pass(model, entry, batch, groups, thresholds)

    wrong_norms, wrong_sums = [], []
    for group, names in named.items():
        scale = whole if group in empty else float(norms[group].max())
        wrong_norms.append(float((ours[group].double() - norms[group]).abs().max()) / scale)
        wrong_sums += [float((got[n].double() - want.sums[n]).abs().max()) / thresholds[group] for n in names]
    wrong_losses = (losses.double() - right.losses).abs() / right.losses.abs().clamp(min=1.0)
    methods = list(ways.norms.values())
    return Verdict(
        _worst(wrong_norms),
        _worst(wrong_sums),
        _worst(wrong_losses.tolist()),
        {way: tuple(sorted(names)) for way, names in sorted(ways.operations.items())},
        {method: methods.count(method) for method in sorted(set(methods))},
    )


def judge_in_turn(entry: Entry, batches: Iterable[Batch]) -> list[float]:
    """One engine on one batch after another, a group for each layer: the worst error of a norm, for each.

    What was learnt of the first batch must hold for batches of other sizes and sequences of other lengths.
    """
    model, single = entry.model(torch.float64, SEED), entry.model(torch.float64, SEED)
    groups = gc.partition(model, "layer-wise")
    engine = gc.attach(model, None, groups, None)
    found = []
    try:
        with no_float32():
            for batch in batches:
                engine.backward(entry.losses(model, batch))
                ours = engine.unsafe_norms()
                engine.discard()
                samples = oracle.per_sample_gradients(single, entry.losses, batch)
                want = oracle.clipped(samples, shapes_of(single), members(groups)).norms
                whole = float(torch.stack(list(want.values())).max())
                worst = [float((ours[g] - n).abs().max()) / max(float(n.max()), 1e-9 * whole) for g, n in want.items()]
                found.append(_worst(worst))
    finally:
        engine.detach()
    return found


def _observed_pass(
    model: nn.Module, entry: Entry, batch: Batch, groups: gc.Partition, thresholds: Mapping[str, float]
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor], Ways]:
    """Losses, clipped sums, norms and ways of a pass that follows one in which all that is to be learnt was learnt."""
    ways = Ways()
    engine = gc.attach(model, None, groups, None, clip="abadi", thresholds=thresholds)
    try:
        entry.losses(model, batch)
        engine._tape.observer = ways
        losses = entry.losses(model, batch)
        engine.backward(losses)
        return losses.detach(), gradients(model), engine.unsafe_norms(), ways
    finally:
        engine.detach()


def _worst(errors: Sequence[float]) -> float:
    """The largest; nan if any is."""
    return float(torch.tensor(errors, dtype=torch.float64).max())
