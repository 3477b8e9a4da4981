"""Samples whose terms nearly cancel: few, each treated by itself.

Such a sample has a small norm and huge terms. Its factor fits the norm: the terms, weighed and added one by one to those of the
others, would round the others away, and their own rounding exceed the threshold. So its gradient is formed first, in float64.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Self

import torch
from torch import Tensor

from .base import PerSample
from .norms import square_sums

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


class MayCancel(PerSample):
    """A form whose norms come from sums of terms, which nearly cancel in some samples: these few are treated by themselves.

    Norms are kept once they are known, also by a selection: another order of adding would give another norm.
    """

    _square_norms: Tensor | None = None
    _square_rooms: Tensor | None = None
    _cancelling: Tensor | None = None  # [B]: the samples in which terms nearly cancel; None if there are none

    @abstractmethod
    def _computed(self) -> tuple[Tensor, Tensor]:
        """Compute ``[B]`` squared norms and their rooms; calls :meth:`_set_apart`."""

    @abstractmethod
    def _product(self, factors: Tensor) -> Tensor:
        """Compute the weighted sum from the terms."""

    @property
    @abstractmethod
    def _numbers(self) -> int:
        """How many numbers the gradient of a sample takes while it is formed."""

    @abstractmethod
    def _exact(self, which: Tensor) -> Tensor:
        """Form the gradients of the samples ``which [K]`` in float64."""

    def square_norms(self) -> Tensor:
        if self._square_norms is None:
            self._square_norms, self._square_rooms = self._computed()
        return self._square_norms

    def square_rooms(self) -> Tensor:
        self.square_norms()
        assert self._square_rooms is not None
        return self._square_rooms

    def weighted_sum(self, factors: Tensor) -> Tensor:
        squares = self.square_norms()
        if self._cancelling is None:
            return self._product(factors)
        total = self._product(factors.masked_fill(self._cancelling, 0.0))
        return add_apart(total, factors, squares, self._cancelling, self._numbers, self._exact)

    def _set_apart(self, doubtful: Tensor, squares: Tensor, rooms: Tensor) -> tuple[Tensor, Tensor]:
        """Return norms and rooms, those of the doubtful samples (``[B]`` of bool) from their gradients themselves."""
        if bool(doubtful.any()):
            self._cancelling = doubtful
            rooms = rooms.masked_fill(doubtful, 0.0)
            for which, grads in few_at_once(doubtful, self._numbers, self._exact):
                squares[which] = square_sums(grads).to(squares.dtype)
        return squares, rooms

    def _knowing(self, whole: Self, index: Tensor) -> Self:
        """Return these gradients, the samples ``index`` of ``whole``, with what is known of them."""
        known = (whole._square_norms, whole._square_rooms, whole._cancelling)
        chosen = [None if one is None else one.index_select(0, index) for one in known]
        self._square_norms, self._square_rooms, self._cancelling = chosen
        return self
