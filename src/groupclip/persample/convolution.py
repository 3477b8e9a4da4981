"""Per-sample gradients of a convolution kernel.

Legend: B samples, K images of each sample (frames, windows; mostly 1), C input and p output channels, n groups of
channels, T output pixels, k kernel pixels. A convolution is a linear map of unfolded patches ``[B, n, KT, (C/n) k]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from .base import PerSample, weigh
from .cancelling import MayCancel
from .dense import Dense
from .norms import AUTO, CANCELLATION, GRAM, accumulation_dtype, choose_method, gram_square_sums


@dataclass(frozen=True)
class Geometry:
    """Describes a convolution apart from its numbers. ``padding`` is the symmetric zero padding of each dimension."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def patches(self, x: Tensor) -> Tensor:
        """Turn images ``[N, C, *pixels]`` into patches ``[N, n, T, (C/n) k]`` (im2col, in any number of dimensions)."""
        dims = len(self.kernel)
        x = torch.nn.functional.pad(x, [q for p in reversed(self.padding) for q in (p, p)])
        for i, (size, step, gap) in enumerate(zip(self.kernel, self.stride, self.dilation, strict=True)):
            x = x.unfold(2 + i, gap * (size - 1) + 1, step)[..., ::gap]  # adds the kernel dimension at the end
        # [N, C, *out, *kernel] -> [N, n, *out, C/n, *kernel]
        x = x.unflatten(1, (self.groups, -1)).movedim(2, 2 + dims)
        return x.flatten(2 + dims).flatten(2, 1 + dims)


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
        return GRAM

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self.g.shape[2], self.x.shape[2] // self.geometry.groups, *self.geometry.kernel)

    def _factors(self) -> tuple[Tensor, Tensor]:
        """Return the convolution as a linear map: inputs ``[B n, KT, (C/n) k]`` and output gradients ``[B n, KT, p/n]``."""
        batch, images, n = self.num_samples, self.x.shape[1], self.geometry.groups
        wide = accumulation_dtype(self.x.dtype)
        a = self.geometry.patches(self.x.flatten(0, 1).to(wide))  # [BK, n, T, (C/n)k]
        a = a.unflatten(0, (batch, images)).movedim(1, 2).flatten(2, 3).flatten(0, 1)
        g = self.g.to(wide).unflatten(2, (n, -1)).flatten(4)  # [B, K, n, p/n, T]
        g = g.permute(0, 2, 1, 4, 3).flatten(2, 3).flatten(0, 1)
        return a, g

    def _computed(self) -> tuple[Tensor, Tensor]:
        batch, n = self.num_samples, self.geometry.groups
        squares, ratio, rooms = (found.view(batch, n) for found in gram_square_sums(*self._factors()))
        squares, ratio, rooms = squares.sum(dim=1), ratio.amin(dim=1), rooms.sum(dim=1)
        doubtful = ratio < CANCELLATION
        return self._set_apart(doubtful, squares, rooms)

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
        geo, dims = self.geometry, len(self.geometry.kernel)
        _, weight, _ = torch.ops.aten.convolution_backward(
            g, x, x.new_empty(self._shape), None, list(geo.stride), list(geo.padding), list(geo.dilation),
            False, [0] * dims, geo.groups, [False, True, False],
        )  # fmt: skip
        return weight

    def instantiate(self) -> Tensor:
        a, g = self._factors()
        return torch.bmm(g.transpose(1, 2), a).view(self.num_samples, *self._shape)

    def select(self, index: Tensor) -> Convolution:
        chosen = Convolution(self.x.index_select(0, index), self.g.index_select(0, index), self.geometry)
        return chosen._knowing(self, index)

    def settle(self, method: str) -> PerSample:
        if method == AUTO:
            positions = self.x.shape[1] * prod(self.g.shape[3:])
            # The kernels of the n channel groups are n independent linear maps of (C/n)k inputs and p/n outputs.
            groups = self.geometry.groups
            outputs = self.g.shape[2] // groups
            method = choose_method(positions, prod(self._shape[1:]), outputs, groups * self.num_samples)
        if method == GRAM:
            self.square_norms()
            return self
        return Dense(self.instantiate()).settle(method)
