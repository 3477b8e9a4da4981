"""The engine judged by the oracle: one function runs it, one works out what is right, one compares.

A batch is the same samples for both; the engine sees it cut into micro-batches, the oracle one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import groupclip as gc
import oracle
from groupclip.partition.groups import Partition
from models import CATALOGUE, Batch, output_square

ENTRIES = {entry.name: entry for entry in CATALOGUE}
CORE = [name for name, entry in ENTRIES.items() if entry.core]
REPEATED = ("vit", "gpt", "gpt-tied")  # those with repeated blocks
B = 6

STYLES: dict[str, str | Callable[[str], str]] = {
    "all-layer": "all-layer",
    "layer-wise": "layer-wise",
    "param-wise": "param-wise",
    "block-wise": "block-wise",
    "type-wise": "type-wise",
    "per-device": "per-device",
    "uniform:2": "uniform:2",
    "boundaries:1": "boundaries:1",
    "function": lambda name: name.rpartition(".")[2],
    "mapping": "mapping",  # made from the model: see `grouped`
}


def styles_of(name: str) -> list[str]:
    """The styles that fit a model of the catalogue."""
    return [style for style in STYLES if style != "block-wise" or name in REPEATED]


def grouped(model: nn.Module, style: str) -> Partition:
    """The partition of that style; the mapping deals out the parameters in turn, norms by a pattern."""
    if style != "mapping":
        return gc.partition(model, STYLES[style])
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    mapping = {name: f"hand-{i % 3}" for i, name in enumerate(names) if "norm" not in name}
    return gc.partition(model, mapping | ({"*norm*": "norms"} if len(mapping) < len(names) else {}))


@dataclass(frozen=True)
class Clipped:
    """As the engine gives them: parameter -> sum of clipped gradients, and group -> norms [B]."""

    sums: dict[str, Tensor]
    norms: dict[str, Tensor]


def cut(batch: Batch, split: Sequence[int]) -> Iterator[Batch]:
    """The micro-batches of those sizes."""
    assert sum(split) == len(batch[0])
    start = 0
    for size in split:
        yield tuple(t[start : start + size] for t in batch)
        start += size


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Copies of ``p.grad`` of what trains, zeros for None."""
    return {
        name: torch.zeros_like(p.data) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def clipped_by_engine(
    model: nn.Module,
    losses: oracle.Losses,
    batch: Batch,
    groups: Partition,
    clip: str = "automatic",
    thresholds: Mapping[str, float] | float = 1.0,
    split: Sequence[int] | None = None,
) -> Clipped:
    """What the engine makes of the batch in micro-batches of the sizes ``split``; detached afterwards."""
    return clipped_by_engine_in_splits(model, losses, batch, groups, clip, thresholds, [split or [len(batch[0])]])[0]


def clipped_by_engine_in_splits(
    model: nn.Module,
    losses: oracle.Losses,
    batch: Batch,
    groups: Partition,
    clip: str,
    thresholds: Mapping[str, float] | float,
    splits: Sequence[Sequence[int]],
) -> list[Clipped]:
    """The same for several splits, one logical batch after another, by one engine."""
    engine = gc.attach(model, None, groups, None, clip=clip, thresholds=thresholds)
    results = []
    try:
        for split in splits:
            norms: list[dict[str, Tensor]] = []
            for part in cut(batch, split):
                engine.backward(losses(model, part))
                norms.append(engine.unsafe_norms())
            results.append(Clipped(gradients(model), {g: torch.cat([n[g] for n in norms]) for g in groups}))
            engine.discard()
    finally:
        engine.detach()
    return results


def between(norms: Mapping[str, Tensor]) -> dict[str, float]:
    """A threshold for every group that clips some samples and not others, with no norm close to it.

    The middle of the widest gap (in ratio) between neighbouring norms; 1 where all are equal or too few.
    """
    thresholds = {}
    for group, values in norms.items():
        ordered = values[torch.isfinite(values) & (values > 0)].double().sort().values
        ratios = ordered[1:] / ordered[:-1]
        if len(ratios) == 0 or ratios.max() < 1.001:
            thresholds[group] = 1.0
        else:
            at = int(ratios.argmax())
            thresholds[group] = float((ordered[at] * ordered[at + 1]).sqrt())
    return thresholds


@dataclass(frozen=True)
class Case:
    """A model of the catalogue under one style and one clip function: the thresholds, and what is right."""

    groups: Partition
    thresholds: dict[str, float]
    reference: oracle.Reference


def members(groups: Partition) -> dict[str, tuple[str, ...]]:
    return {group: groups[group] for group in groups}


@functools.lru_cache(maxsize=512)
def case(name: str, style: str, clip: str, size: int = B) -> Case:
    """The oracle's answer (float64), with thresholds that clip some samples of the batch and not others."""
    entry = ENTRIES[name]
    model, batch = entry.model(), entry.batch(size)
    groups = grouped(model, style)
    first = oracle.clipped_sum(model, entry.losses, batch, members(groups))
    thresholds = between(first.norms)
    reference = oracle.clipped_sum(model, entry.losses, batch, members(groups), clip, thresholds)
    return Case(groups, thresholds, reference)


def faults(
    got: Clipped, want: oracle.Reference, groups: Partition, thresholds: Mapping[str, float], tolerance: float
) -> list[str]:
    """Where the engine and the oracle disagree: sums by more than ``tolerance`` of R_m, norms relatively by
    more than ``tolerance`` (absolutely below 1)."""
    if set(got.sums) != set(want.sums):
        return [f"parameters {set(got.sums) ^ set(want.sums)}"]
    found = []
    for group in groups:
        for name in groups[group]:
            worst = _largest(got.sums[name].double() - want.sums[name]) / thresholds[group]
            if not worst <= tolerance:
                found.append(f"{name}: sum is off by {worst:.1e} of R")
        ours, right = got.norms[group].double(), want.norms[group]
        if ours.shape != right.shape:
            found.append(f"{group}: {tuple(ours.shape)} norms, not {tuple(right.shape)}")
        else:
            finite = torch.isfinite(right)
            worst = _largest(((ours - right) / right.clamp(min=1.0))[finite])
            if not (worst <= tolerance and torch.equal(finite, torch.isfinite(ours))):
                found.append(f"{group}: norms are off by {worst:.1e}")
    return found


def _largest(x: Tensor) -> float:
    return x.abs().max().item() if x.numel() else 0.0


def inexact(
    model: nn.Module,
    batch: Batch,
    losses: oracle.Losses | None = None,
    styles: Sequence[str] = ("all-layer", "param-wise"),
    methods: str = "auto",
) -> list[str]:
    """Where the engine isn't exact on a model of its own: losses that attaching changes, sums and norms, in float64.

    The model is moved away from its initial weights, so that none is at zero or one, and clipped to the middle norm.
    """
    losses = output_square if losses is None else losses
    model = model.double()
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    batch = tuple(t.double() if t.is_floating_point() else t for t in batch)
    plain = losses(model, batch).detach()
    found = []
    for style in styles:
        groups = gc.partition(model, style)
        thresholds = between(oracle.clipped_sum(model, losses, batch, members(groups)).norms)
        want = oracle.clipped_sum(model, losses, batch, members(groups), "abadi", thresholds)
        chosen = groups.with_methods({name: methods for group in groups for name in groups[group]})
        engine = gc.attach(model, None, chosen, None, clip="abadi", thresholds=thresholds)
        attached = losses(model, batch)
        engine.backward(attached)
        got = Clipped(gradients(model), engine.unsafe_norms())
        engine.detach()
        attached = attached.detach()
        if _largest(attached - plain) > 1e-12 * max(1.0, _largest(plain)):
            found.append(f"{style}: attaching changes the losses by {_largest(attached - plain):.1e}")
        found += [f"{style}: {fault}" for fault in faults(got, want, groups, thresholds, 1e-10)]
    return found
