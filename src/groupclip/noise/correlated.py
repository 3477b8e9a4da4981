"""Noise that is correlated over steps: ``C^-1 Z`` of independent noise Z, C with b bands (:mod:`groupclip.privacy.toeplitz`).

Row t of ``C W = Z`` gives the noise of a step from that of the b - 1 steps before: ``w_t = (z_t - sum_k c_k w_{t-k}) / c_0``. These
are kept, b - 1 numbers for each coordinate, in the dtype in which noise is added. Whoever knew the earlier steps' noise could
subtract it, and so could whoever had a copy of these buffers: they are neither saved nor shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from .jointly import add_to_all
from .keystream import refuse_copy
from .sources import NoiseSource, sum_dtype


class CorrelatedNoise:
    """The noise of one stretch of steps on one list of tensors.

    Args:
        column: c_0 .. c_{b-1}, the first column of C, of norm 1 at most; c_0 > 0.
    """

    def __init__(self, column: Sequence[float]) -> None:
        self._column = tuple(column)
        self._before: list[list[Tensor]] = []  # of each tensor, the noise of steps before: the latest first
        self._whole = True

    @property
    def bands(self) -> int:
        return len(self._column)

    @property
    def is_whole(self) -> bool:
        """Whether every step that was begun came to its end. Else some tensors are a step ahead: begin anew."""
        return self._whole

    @property
    def nbytes(self) -> int:
        """What is kept for the next step."""
        return sum(tensor.nbytes for kept in self._before for tensor in kept)

    def begin_anew(self) -> None:
        """Forget the noise of all steps before: the next one's is independent of it."""
        for kept in self._before:
            for tensor in kept:
                tensor.zero_()
        self._whole = True

    def prepare(self, like: Sequence[Tensor]) -> None:
        """Make room for noise of the shapes, types and devices of these tensors; half precision is kept in single.

        Where that isn't what is kept, all of it is forgotten, as by :meth:`begin_anew`.
        """
        if not self.fits(like):
            self._before = [[_room(tensor) for _ in range(self.bands - 1)] for tensor in like]
            self._whole = True

    def fits(self, like: Sequence[Tensor]) -> bool:
        """Return whether the noise that is kept is of the shapes, types and devices that noise for these tensors has.

        Noise of a narrower type would leave the low bits of a wider sum bare.
        """
        kept = [_kind(each[0]) for each in self._before if each]
        return kept == [(tensor.shape, sum_dtype(tensor.dtype), tensor.device) for tensor in like]

    @torch.no_grad()
    def draw(self, noise: NoiseSource, stds: Sequence[float]) -> list[Tensor]:
        """Return the noise of the next step, in the shapes that :meth:`prepare` was given.

        Args:
            noise: source of the independent noise Z.
            stds: standard deviation of Z for each of the tensors.

        Returns:
            Tensors that are kept for the next steps: add them, and don't change them.
        """
        self._whole = False
        latest = []
        for kept in self._before:
            oldest = kept.pop()  # whose place the new noise takes
            oldest.mul_(-self._column[-1])
            for share, earlier in zip(self._column[1:], kept, strict=False):
                oldest.sub_(earlier, alpha=share)
            kept.insert(0, oldest)
            latest.append(oldest)
        add_to_all(noise, [(tensor, std) for tensor, std in zip(latest, stds, strict=True)])
        for tensor in latest:
            tensor.div_(self._column[0])
        self._whole = True
        return latest

    def __repr__(self) -> str:
        return f"CorrelatedNoise(bands={self.bands})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        refuse_copy(self)


def bytes_kept(coordinates: int, dtype: torch.dtype, bands: int) -> int:
    """Return what is kept for so many coordinates of this type."""
    return (bands - 1) * coordinates * sum_dtype(dtype).itemsize


def _kind(tensor: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device


def _room(tensor: Tensor) -> Tensor:
    return torch.zeros(tensor.shape, dtype=sum_dtype(tensor.dtype), device=tensor.device)
