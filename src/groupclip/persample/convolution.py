"""Per-sample gradients of a convolution kernel.

Legend: B samples, K images of each sample (frames, windows; mostly 1), C input and p output channels, n groups of
channels, T output pixels, k kernel pixels. A convolution is a linear map of unfolded patches ``[B, n, KT, (C/n) k]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from .base import PerSample, weigh
from .cancelling import MayCancel
from .dense import Dense
from .norms import (
    AUTO,
    CANCELLATION,
    GRAM,
    INSTANTIATED,
    LAST,
    accumulation_dtype,
    choose_method,
    gram_square_sums,
    lost,
    square_sums,
    streaming_is_quicker,
)
from .streamed import Streamed

_AT_ONCE = 1 << 18  # numbers of gradients, or of patches, that are formed together
_FEW = 1 << 16  # numbers of all samples up to which gradients are kept in any case
_KEPT_MORE = 2  # gradients are kept that are so many times what their inputs and output gradients are: a product less


@dataclass(frozen=True)
class Geometry:
    """Describes a convolution apart from its numbers. ``padding`` is the symmetric zero padding of each dimension."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def disjoint(self) -> bool:
        """Whether no pixel is in two patches, as where an image is cut up: to unfold it adds no numbers."""
        return self.kernel == self.stride and not any(self.padding) and all(gap == 1 for gap in self.dilation)

    def patches(self, x: Tensor) -> Tensor:
        """Turn images ``[N, C, *pixels]`` into patches ``[N, n, (C/n) k, T]`` (im2col, in any number of dimensions)."""
        dims = len(self.kernel)
        x = torch.nn.functional.pad(x, [q for p in reversed(self.padding) for q in (p, p)])
        for i, (size, step, gap) in enumerate(zip(self.kernel, self.stride, self.dilation, strict=True)):
            x = x.unfold(2 + i, gap * (size - 1) + 1, step)[..., ::gap]  # adds the kernel dimension at the end
        # [N, C, *out, *kernel] -> [N, n, C/n, *kernel, *out]: pixels last, so that rows of them are copied
        x = x.permute(0, 1, *range(2 + dims, 2 + 2 * dims), *range(2, 2 + dims)).unflatten(1, (self.groups, -1))
        return x.flatten(3 + dims).flatten(2, 2 + dims)

    def weight_gradient(self, x: Tensor, g: Tensor, shape: Sequence[int], samples: int = 1) -> Tensor:
        """Return the gradients ``[samples * p, C/n, *kernel]`` of kernels of this shape ``[p, C/n, *kernel]``, one for each sample.

        Args:
            x: ``[K, samples * C, *pixels]``; g: ``[K, samples * p, *out]``. Samples are groups of channels: nothing is unfolded.
        """
        stride, padding, dilation = list(self.stride), list(self.padding), list(self.dilation)
        # Of other strides, of dimensions of size 1 too, torch makes gradients that its own kernels refuse.
        x, g = (t.contiguous().view(-1).view(t.shape) for t in (x, g))
        _, weight, _ = torch.ops.aten.convolution_backward(
            g, x, x.new_empty(samples * shape[0], *shape[1:]), None, stride, padding, dilation,
            False, [0] * len(self.kernel), samples * self.groups, [False, True, False],
        )  # fmt: skip
        return weight


class Convolution(MayCancel):
    """Gradients of a kernel ``[p, C/n, *kernel]`` of B samples with K images each.

    Args:
        x: ``[B, K, C, *pixels]`` inputs; g: ``[B, K, p, *out]`` gradients with respect to the outputs.
    """

    def __init__(self, x: Tensor, g: Tensor, geometry: Geometry) -> None:
        self.x, self.g, self.geometry = x, g, geometry

    @property
    def dtype(self) -> torch.dtype:
        return self.g.dtype

    @property
    def num_samples(self) -> int:
        return self.x.shape[0]

    @property
    def method(self) -> str:
        return INSTANTIATED if self._streams else GRAM

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self.g.shape[2], self.x.shape[2] // self.geometry.groups, *self.geometry.kernel)

    @property
    def _linear(self) -> tuple[int, int, int]:
        """Positions, inputs and outputs of the n independent linear maps that it is: one for each group of channels."""
        positions = self.x.shape[1] * prod(self.g.shape[3:])
        return positions, prod(self._shape[1:]), self.g.shape[2] // self.geometry.groups

    @property
    def _streams(self) -> bool:
        """Whether norms come from gradients that are formed and dropped, sooner than from Gram matrices of unfolded patches."""
        return not self.geometry.disjoint and streaming_is_quicker(*self._linear)

    def _pieces(self, numbers: int) -> Iterator[tuple[int, int]]:
        """Yield the first and one past the last of consecutive samples, of which each takes so many numbers."""
        few = max(1, _AT_ONCE // max(1, numbers))
        for start in range(0, self.num_samples, few):
            yield start, min(start + few, self.num_samples)

    def _factors(self) -> tuple[Tensor, Tensor]:
        """Return the convolution as a linear map: inputs ``[B n, KT, (C/n) k]`` and output gradients ``[B n, KT, p/n]``."""
        batch, images, n = self.num_samples, self.x.shape[1], self.geometry.groups
        wide = accumulation_dtype(self.x.dtype)
        a = self.geometry.patches(self.x.flatten(0, 1).to(wide))  # [BK, n, (C/n)k, T]
        a = a.unflatten(0, (batch, images)).permute(0, 2, 1, 4, 3).flatten(2, 3).flatten(0, 1)
        g = self.g.to(wide).unflatten(2, (n, -1)).flatten(4)  # [B, K, n, p/n, T]
        g = g.permute(0, 2, 1, 4, 3).flatten(2, 3).flatten(0, 1)
        return a, g

    def _computed(self) -> tuple[Tensor, Tensor]:
        squares, doubtful, rooms = self._streamed() if self._streams else self._by_gram()
        return self._set_apart(doubtful, squares, rooms)

    def _by_gram(self) -> tuple[Tensor, Tensor, Tensor]:
        positions, inputs, outputs = self._linear
        n, found = self.geometry.groups, []
        for start, end in self._pieces(n * positions * (inputs + outputs)):
            few = self.narrow(start, end)
            squares, ratio, rooms = (x.view(end - start, n) for x in gram_square_sums(*few._factors()))
            found.append((squares.sum(dim=1), ratio.amin(dim=1) < CANCELLATION, rooms.sum(dim=1)))
        return _together(found, self)

    def _streamed(self) -> tuple[Tensor, Tensor, Tensor]:
        """Compute squared norms, doubts and rooms from gradients that are dropped. Their terms are to be added up once more."""
        wide = accumulation_dtype(self.x.dtype)
        positions, eps = self._linear[0], torch.finfo(wide).eps / 2
        found = []
        for start, end in self._pieces(prod(self._shape)):
            few = self.narrow(start, end)
            squares = square_sums(few.instantiate())
            # The terms' lengths add up to at most the root of this (Cauchy and Schwarz): a pixel is in as many as k patches.
            most = square_sums(few.x).double() * square_sums(few.g).double() * prod(self.geometry.kernel)
            # As many independent terms give a T-th of it: as little as Gram matrices are taken at their word for.
            doubtful = squares.double() * positions < CANCELLATION * most / self.geometry.groups
            under = lost(wide, prod(self._shape) * positions)
            found.append((squares, doubtful, (8 * eps) ** 2 * most + under))
        return _together(found, self)

    @property
    def _numbers(self) -> int:
        positions = self.x.shape[1] * prod(self.g.shape[3:])
        return max(prod(self._shape), positions * prod(self._shape[1:]) * self.geometry.groups)

    def _exact(self, which: Tensor) -> Tensor:
        x, g = self.x.index_select(0, which), self.g.index_select(0, which)
        return Convolution(x.double(), g.double(), self.geometry).instantiate()

    def _product(self, factors: Tensor) -> Tensor:
        wide = accumulation_dtype(self.x.dtype)
        x, g = self.x.flatten(0, 1).to(wide), weigh(self.g, factors).flatten(0, 1).to(wide)
        return self.geometry.weight_gradient(x, g, self._shape)

    def instantiate(self) -> Tensor:
        wide, shape = accumulation_dtype(self.x.dtype), self._shape
        if self.num_samples == 0 or self.x.numel() == 0 or self.g.numel() == 0:
            return self.x.new_zeros(self.num_samples, *shape, dtype=wide)
        if self.geometry.disjoint:
            a, g = self._factors()
            return torch.bmm(g.transpose(1, 2), a).view(self.num_samples, *shape)
        pieces = []
        for start, end in self._pieces(prod(shape)):
            few = [t[start:end].to(wide).transpose(0, 1).flatten(1, 2) for t in (self.x, self.g)]
            pieces.append(self.geometry.weight_gradient(few[0], few[1], shape, end - start).view(end - start, *shape))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def form(self, memory: Tensor | None) -> Tensor:
        del memory  # convolutions take their own
        return self.instantiate()

    def narrow(self, start: int, end: int) -> Convolution:
        return Convolution(self.x[start:end], self.g[start:end], self.geometry)

    def select(self, index: Tensor) -> Convolution:
        chosen = Convolution(self.x.index_select(0, index), self.g.index_select(0, index), self.geometry)
        return chosen._knowing(self, index)

    def settle(self, method: str) -> PerSample:
        numbers, kept = prod(self._shape), (self.x.numel() + self.g.numel()) // max(1, self.num_samples)
        if method == LAST and self.num_samples > 1 and Streamed.is_worth(self, numbers) and streaming_is_quicker(*self._linear):
            return Streamed(self, numbers, kept)
        if method in (AUTO, LAST) and self.geometry.disjoint:  # as of linear maps: to form gradients spares no unfolding
            positions, inputs, outputs = self._linear
            method = choose_method(positions, inputs, outputs, self.geometry.groups * self.num_samples)
        elif method in (AUTO, LAST):
            few = self.num_samples * numbers <= _FEW
            method = INSTANTIATED if numbers <= _KEPT_MORE * kept or few else GRAM
        if method == GRAM:
            self.square_norms()
            return self
        return Dense(self.instantiate()).settle(method)


def _together(
    found: Sequence[tuple[Tensor, Tensor, Tensor]], whole: Convolution
) -> tuple[Tensor, Tensor, Tensor]:
    """Return squared norms, doubts and rooms of all samples from those of a few at once."""
    if not found:
        squares = whole.g.new_zeros(0, dtype=accumulation_dtype(whole.g.dtype))
        return squares, squares > 0, squares.double()
    one, two, three = zip(*found, strict=True)
    return torch.cat(one), torch.cat(two), torch.cat(three)
