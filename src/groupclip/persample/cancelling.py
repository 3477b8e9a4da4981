"""Samples whose terms nearly cancel: few, each treated by itself.

Such a sample has a small norm and huge terms. Its factor fits the norm: the terms, weighed and added one by one to those of the
others, would round the others away, and their own rounding exceed the threshold. So its gradient is formed first, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

_AT_ONCE = 1 << 24  # numbers of gradients that are instantiated together

#: Gradients ``[K, *shape]`` of the samples ``index [K]``, in float64.
Gradients = Callable[[Tensor], Tensor]


def few_at_once(chosen: Tensor, numbers: int, gradients: Gradients) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield indices of the chosen samples and their gradients, as many at once as memory allows.

    Args:
        chosen: ``[B]`` of bool.
        numbers: how many each sample needs.
        gradients: see :data:`Gradients`.
    """
    for which in chosen.nonzero().flatten().split(max(1, _AT_ONCE // max(1, numbers))):
        yield which, gradients(which)


def add_apart(
    total: Tensor, factors: Tensor, squares: Tensor, chosen: Tensor, numbers: int, gradients: Gradients
) -> Tensor:
    """Add the weighted gradients of the chosen samples to ``total``, each no longer than its norm says.

    Terms that cancel may leave another remainder when they are added up again, in another order: that one is shortened.
    """
    for which, grads in few_at_once(chosen, numbers, gradients):
        lengths = grads.flatten(1).norm(dim=1)
        stated = squares[which].double().sqrt()
        weights = factors[which].double() * torch.where(lengths > stated, stated / lengths, 1.0)
        total = total + torch.tensordot(weights, grads, 1).to(total.dtype)
    return total


def chosen_of(index: Tensor, *kept: Tensor | None) -> list[Tensor | None]:
    """Select what is known of the samples ``index``: a norm isn't computed twice, as another order of adding gives another norm."""
    return [None if one is None else one.index_select(0, index) for one in kept]
