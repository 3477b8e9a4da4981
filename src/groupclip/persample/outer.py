"""Per-sample gradients of a weight matrix, as the two factors of Book-Keeping: inputs and output gradients.

Legend: B samples, T positions that share the weight, d inputs, p outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PerSample, formed, rounds_products, weigh, weighing_rounding, wide_product
from .cancelling import MayCancel
from .dense import Dense
from .norms import (
    AUTO,
    CANCELLATION,
    GRAM,
    LAST,
    accumulation_dtype,
    choose_method,
    forming_again_is_quicker,
    gram_square_sums,
    square_sums,
    streaming_is_quicker,
)
from .streamed import FormedAgain, Streamed


class Outer(MayCancel):
    """Gradients ``g_i^T a_i`` (``[p, d]``), or their transposes ``a_i^T g_i`` (``[d, p]``), of B samples.

    Args:
        a: ``[B, T, d]`` inputs of the layer.
        g: ``[B, T, p]`` gradients of the loss with respect to its outputs.
        inputs_first: the weight is stored ``[d, p]`` (``x @ W``) instead of ``[p, d]`` (``F.linear``).
    """

    def __init__(self, a: Tensor, g: Tensor, inputs_first: bool = False) -> None:
        self.a, self.g, self.inputs_first = a, g, inputs_first

    @property
    def dtype(self) -> torch.dtype:
        return self.g.dtype

    @property
    def num_samples(self) -> int:
        return self.a.shape[0]

    @property
    def positions(self) -> int:
        return self.a.shape[1]

    @property
    def method(self) -> str:
        return "closed form" if self.positions == 1 else GRAM

    def _computed(self) -> tuple[Tensor, Tensor]:
        return self._closed() if self.positions == 1 else self._by_gram()

    def _closed(self) -> tuple[Tensor, Tensor]:
        a, g = square_sums(self.a), square_sums(self.g)
        tiny = torch.finfo(a.dtype).tiny
        return a * g, torch.add(a * (tiny * self.g.shape[2]), g, alpha=tiny * self.a.shape[2])

    def _by_gram(self) -> tuple[Tensor, Tensor]:
        squares, ratio, rooms = gram_square_sums(self.a, self.g, weighing_rounding(self.g))
        # <AA^T, GG^T> of a sample whose terms cancel says little: take that sample's gradient itself.
        doubtful = ratio < CANCELLATION
        return self._set_apart(doubtful, squares, rooms)

    @property
    def _numbers(self) -> int:
        return self.a.shape[2] * self.g.shape[2]

    def _exact(self, which: Tensor) -> Tensor:
        a, g = self.a.index_select(0, which), self.g.index_select(0, which)
        return Outer(a.double(), g.double(), self.inputs_first).instantiate()

    def _product(self, factors: Tensor) -> Tensor:
        a, g = self.a, self.g
        if a.dtype == torch.float16:  # its range is too small for factors of large gradients
            a, g = a.float(), g.float()
        # Scale the thinner operand, and never in place: autograd may be using the same tensor elsewhere.
        kept = a.dtype if weighing_rounding(g) else accumulation_dtype(a.dtype)
        if a.shape[2] < g.shape[2]:
            a = weigh(a, factors).to(kept)
        else:
            g = weigh(g, factors).to(kept)
        a, g = a.flatten(0, 1), g.flatten(0, 1)
        return wide_product(a.t(), g) if self.inputs_first else wide_product(g.t(), a)

    def instantiate(self) -> Tensor:
        return self.form(None)

    def form(self, memory: Tensor | None) -> Tensor:
        left, right = (self.a, self.g) if self.inputs_first else (self.g, self.a)
        return formed(left.transpose(1, 2), right, memory)

    def narrow(self, start: int, end: int) -> Outer:
        return Outer(self.a[start:end], self.g[start:end], self.inputs_first)

    def select(self, index: Tensor) -> Outer:
        chosen = Outer(self.a.index_select(0, index), self.g.index_select(0, index), self.inputs_first)
        return chosen._knowing(self, index)

    def transposed(self) -> Outer:
        """Return the gradients of the transposed weight."""
        return Outer(self.a, self.g, not self.inputs_first)

    def settle(self, method: str) -> PerSample:
        samples, positions, inputs, outputs = *self.a.shape, self.g.shape[2]
        numbers, kept = inputs * outputs, positions * (inputs + outputs)
        rounded = rounds_products(self.a, self.g) and numbers <= samples * kept
        quick = samples > 1 and (rounded or streaming_is_quicker(positions, inputs, outputs))
        if method == LAST and quick and Streamed.is_worth(self, numbers):
            return Streamed(self, numbers, kept)
        if method in (AUTO, LAST):
            method = choose_method(positions, inputs, outputs, samples)
            again = method == GRAM and rounded and positions > 1 and forming_again_is_quicker(positions, inputs, outputs)
            if again and Streamed.is_worth(self, numbers):
                return FormedAgain(self, numbers, kept)
        if method == GRAM or self.a.shape[1] == 1:
            self.square_norms()
            return self
        return Dense(self.instantiate()).settle(method)


def join_outers(uses: list[Outer]) -> Outer:
    """Join several uses of one weight: the gradient is their sum, so they are one use with more positions T."""
    flips = [use.inputs_first != uses[0].inputs_first for use in uses]
    # (a, g) of a transposed use trade places: g^T a with inputs first is (a, g) swapped.
    inputs = [use.g if flip else use.a for use, flip in zip(uses, flips, strict=True)]
    grads = [use.a if flip else use.g for use, flip in zip(uses, flips, strict=True)]
    return Outer(torch.cat(inputs, dim=1), torch.cat(grads, dim=1), uses[0].inputs_first)
