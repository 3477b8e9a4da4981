"""Which module mixes the samples: the first whose output has entries that two samples change, and whose inputs have none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..nested import tensors_in
from .replay import Replays
from .samples import Batch, Path, told

#: Relative to the largest entry: below it, a difference is rounding.
_ROUNDING = 1e-6


#: What can't be held still.
_DRAWS = (
    ". Or is it random numbers? Those of a numpy or Python generator of the model's own can't be told apart by sample: draw with "
    "torch, numpy.random or random"
)


def blame(replays: Replays, data: Batch, round_: int, order: Sequence[int]) -> str:
    """Say where it begins that samples' losses depend on each other in a batch of this order."""
    name = _first_in(replays, data, round_, range(replays.total))
    if name is None and len(order) > replays.total:  # small batches don't show it
        name = _first_in(replays, data, round_, order)
    more = _DRAWS * replays.own_generators
    whole = _apart_if_whole(replays, data, round_)
    if whole:
        more += (
            f". (They keep apart if {told(whole)} of the batch is of no sample, though as long as it: if so, pass an example with "
            "another number of samples)"
        )
    if name is None:
        return (
            "the loss of a sample depends on the other samples of the batch, though the model's outputs don't: loss_fn "
            "divides by a count over the batch (as a mean over all tokens does), or compares samples with each other (as "
            "contrastive losses do). Average each sample's own terms, e.g. (losses * mask).sum(1) / mask.sum(1); a loss "
            "over pairs of samples needs the pair as the sample" + more
        )
    kind = type(replays.model.get_submodule(name)).__name__
    where = f"module {name!r} ({kind})" if name else f"the forward method of {kind} itself, outside its submodules,"
    return (
        f"{where} mixes the samples of the batch: what it gives for one depends on another, so clipping can't bound what "
        "a sample does. Let it use each sample's own entries alone (GroupNorm or LayerNorm instead of statistics over the "
        "batch; attention within a sample; no comparison between samples). If its input has the sequence first, the "
        "sample must come first instead, or batch_first=True" + more
    )


def _first_in(replays: Replays, data: Batch, round_: int, order: Sequence[int]) -> str | None:
    """Return the first module that mixes the samples of such a batch."""
    places = range(len(order))
    replaced = [[order[(i + 1) % len(order)] if i == j else order[i] for i in places] for j in places[:_REPLACED]]

    def run(arguments: tuple[Any, ...]) -> None:
        with replays.alike(order, round_):
            replays.loss(arguments)

    return first_mixing_module(replays.model, run, [data.pick(*each) for each in (order, *replaced)])


def _apart_if_whole(replays: Replays, data: Batch, round_: int) -> list[Path]:
    """Return the inputs that, if they were of no sample, would leave the losses of single samples apart."""
    everyone = range(replays.total)

    def apart(path: Path) -> bool:
        read = Batch(data.given, data.shared | {path})
        losses = []
        for samples in (everyone, *((i,) for i in everyone)):
            with replays.alike(samples, round_), torch.no_grad():
                losses.append(replays.loss(read.pick(*samples)))
        together, *alone = losses
        return all(x.shape == (1,) for x in alone) and torch.allclose(together, torch.cat(alone), rtol=1e-4, atol=1e-6)

    found = []
    for path in data.doubtful:
        try:
            if apart(path):
                found.append(path)
        except Exception:  # it is of the samples: shapes don't fit
            continue
    return found


#: So many samples are replaced, one at a time.
_REPLACED = 8


@dataclass
class _Trace:
    """Holds what went into and came out of every module of one pass, in the order in which modules finished."""

    calls: list[tuple[str, list[Tensor], list[Tensor]]] = field(default_factory=list)


def first_mixing_module(model: nn.Module, run: Callable[[Any], Any], batches: Sequence[Any]) -> str | None:
    """Return the name of the first module that mixes samples; None if none is seen to.

    An entry of an output that changes when one sample is replaced AND when another is depends on both. This asks nothing about
    where samples lie.

    Args:
        run: makes a forward pass over a batch.
        batches: one, and the same with one sample replaced, another in each.
    """
    here, *others = [_trace(model, run, batch) for batch in batches]
    if any([name for name, _, _ in t.calls] != [name for name, _, _ in here.calls] for t in others):
        return None
    for (name, *own), *replaced in zip(here.calls, *(t.calls for t in others), strict=True):
        inputs, outputs = (_mixed(own[k], [r[k + 1] for r in replaced]) for k in (0, 1))
        if outputs and not inputs:
            return name
    return None


def _trace(model: nn.Module, run: Callable[[Any], Any], batch: Any) -> _Trace:
    trace, handles = _Trace(), []

    def recorder(name: str) -> Callable[..., None]:
        def record(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            ins, outs = ([t.detach().clone() for t in tensors_in(v)] for v in ((args, kwargs), output))
            trace.calls.append((name, ins, outs))

        return record

    for name, module in model.named_modules():
        handles.append(module.register_forward_hook(recorder(name), with_kwargs=True))
    try:
        with torch.no_grad():
            run(batch)
    finally:
        for handle in handles:
            handle.remove()
    return trace


def _mixed(here: list[Tensor], others: list[list[Tensor]]) -> bool:
    """Return whether any entry depends on several samples. Where shapes differ from pass to pass, nothing can be said."""
    for x, *replaced in zip(here, *others, strict=False):
        if all(y.shape == x.shape for y in replaced):
            changes = sum(_differs(x, y).int() for y in replaced)
            if isinstance(changes, Tensor) and bool((changes > 1).any()):
                return True
    return False


def _differs(x: Tensor, y: Tensor) -> Tensor:
    if not x.is_floating_point():
        return x != y
    x, y = x.double(), y.double()
    size = float(x.abs().nan_to_num(0, 0, 0).amax()) if x.numel() else 0.0
    return ~torch.isclose(x, y, rtol=0.0, atol=size * _ROUNDING, equal_nan=True)
