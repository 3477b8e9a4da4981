"""Which module mixes the samples: the first whose output has entries that two samples change, and whose inputs have none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..batch import tensors_in

#: Relative to the largest entry: below it, a difference is rounding.
_ROUNDING = 1e-6


@dataclass
class _Trace:
    """What went into and came out of every module of one pass, in the order in which modules finished."""

    calls: list[tuple[str, list[Tensor], list[Tensor]]] = field(default_factory=list)


def first_mixing_module(model: nn.Module, run: Callable[[Any], Any], batches: Sequence[Any]) -> str | None:
    """The name of the first module that mixes samples; None if none is seen to.

    An entry of an output that changes when sample 0 is replaced AND when sample 1 is replaced depends on both. This asks
    nothing about where samples lie.

    Args:
        run: makes a forward pass over a batch.
        batches: three batches of two samples: one, the same with its second sample replaced, and with its first.
    """
    traces = [_traced(model, run, batch) for batch in batches]
    names = [[name for name, _, _ in t.calls] for t in traces]
    if not (names[0] == names[1] == names[2]):
        return None
    for (name, *here), (_, *second), (_, *first) in zip(*(t.calls for t in traces), strict=True):
        inputs, outputs = (_mixed(here[k], second[k], first[k]) for k in (0, 1))
        if outputs and not inputs:
            return name
    return None


def _traced(model: nn.Module, run: Callable[[Any], Any], batch: Any) -> _Trace:
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


def _mixed(here: list[Tensor], second: list[Tensor], first: list[Tensor]) -> bool:
    """Whether any entry depends on both samples. Where shapes differ from pass to pass, nothing can be said."""
    for x, y, z in zip(here, second, first, strict=False):
        if x.shape == y.shape == z.shape and bool((_differs(x, y) & _differs(x, z)).any()):
            return True
    return False


def _differs(x: Tensor, y: Tensor) -> Tensor:
    if not x.is_floating_point():
        return x != y
    x, y = x.double(), y.double()
    size = float(x.abs().nan_to_num(0, 0, 0).amax()) if x.numel() else 0.0
    return ~torch.isclose(x, y, rtol=0.0, atol=size * _ROUNDING, equal_nan=True)
