"""Tensors of single samples that a loss got by another way than the model's outputs: from a closure, or from what a hook kept.

Where all samples ran together torch refuses such a tensor outside of the pass. Where they ran in parts, the loss would get that of
the part that ran last, for all samples, in silence; so the graph between the outputs and the losses is walked through.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..autograd.tap import used_at
from ..errors import UnsupportedOperation
from ..nested import tensors_in

_JOINED = "groupclip: of all samples"


def mark(outputs: Any) -> None:
    """Says that these tensors are of all samples: what lies behind them is in order."""
    for tensor in tensors_in(outputs):
        node: Any = tensor.grad_fn  # torch's types call its metadata a method
        if node is not None:
            node.metadata[_JOINED] = True


def refuse_escaped(losses: Tensor) -> None:
    """Walks from the losses to what was marked.

    Raises:
        UnsupportedOperation: a use of a parameter by some of the samples alone is reached.
    """
    seen: set[Any] = set()
    waiting: list[tuple[Any, int]] = [(losses.grad_fn, 0)]
    while waiting:
        node, output = waiting.pop()
        if node is None or node in seen or _JOINED in node.metadata:
            continue
        seen.add(node)
        used = used_at(node, output)
        if used is not None and used[0].rows is not None:
            names = used[1]
            raise UnsupportedOperation(
                f"the losses depend on a tensor that was computed from {', '.join(names)} and didn't come out of the "
                "model's outputs (a forward hook or a closure kept it). Samples of this batch ran in parts, and it is of one "
                "part only: return it from forward(), or compute the losses in a function of the samples alone: "
                "engine.per_sample(function, inputs)"
            )
        waiting += node.next_functions
