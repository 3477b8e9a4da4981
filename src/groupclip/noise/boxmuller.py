"""Standard normals from random words: 128 bits for two, by Box and Muller's method in float64.

Word pairs ``(v, w)``, read as signed 64-bit integers, give ``u = |v| / 2^63`` in (0, 1] and the angle ``a = pi w / 2^63``; then
``r = sqrt(-2 ln u)`` times ``cos a`` and ``sin a`` are two independent normals (Ann. Math. Stat. 29, 1958). Signed words need no
masks, and a small ``u`` keeps all its 53 bits of precision, so the tail runs on to 9.3 standard deviations.

The same is computed in two ways, equal up to rounding: where NumPy has vector instructions for logarithm and tangent (AVX-512) it
is the faster one (benchmarks/noise.py), elsewhere torch.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class Workspace(Protocol):
    """Holds what one thread reuses for all its chunks."""

    words: np.ndarray

    def needed(self, count: int) -> np.ndarray:
        """Return the place of the words for ``count`` coordinates, contiguous."""
        ...

    def add(self, piece: Tensor, std: float) -> None:
        """Adds to ``piece`` the normals, times ``std``, of the words that were filled in: two for each pair of coordinates."""
        ...


class InNumPy:
    """Makes normals by NumPy's logarithm and tangent."""

    def __init__(self, count: int) -> None:
        self.words = _empty(count, torch.int64).numpy()
        self._spare = _empty(count, torch.float64).numpy()

    def needed(self, count: int) -> np.ndarray:
        """Return the place of the words for ``count`` normals."""
        return self.words[: count + count % 2]

    def add(self, piece: Tensor, std: float) -> None:
        target = piece.numpy()
        with np.errstate(all="ignore"):  # as in torch: a sum that is too large for a dtype is infinite there
            np.add(target, self.normals(target.size, std).reshape(target.shape), out=target, casting="same_kind")

    def normals(self, count: int, std: float) -> np.ndarray:
        """Return ``count`` normals times ``std``, float64; valid until the next call. Uses the words up."""
        pairs = (count + 1) // 2
        v, w = self.words[:pairs], self.words[pairs : 2 * pairs]
        radius, half = self._spare[:pairs], self._spare[pairs : 2 * pairs]
        np.bitwise_or(v, 1, out=v)  # u = 0 would be an infinite normal
        np.copyto(radius, v)
        np.abs(radius, out=radius)
        np.multiply(radius, 2.0**-63, out=radius)
        np.log(radius, out=radius)
        np.multiply(radius, -2.0, out=radius)
        np.sqrt(radius, out=radius)
        np.multiply(radius, std, out=radius)
        np.multiply(w, math.pi * 2.0**-64, out=half)
        normals = self.words[: 2 * pairs].view(np.float64)
        turned(radius, half, normals[:pairs], normals[pairs:])
        return normals[:count]


def turned(radius: np.ndarray, half: np.ndarray, cosines: np.ndarray, sines: np.ndarray) -> None:
    """Writes ``radius`` times cosine and sine of twice the angle ``half``, which is used up; all float64, of one shape.

    With ``t = tan(a / 2)``: ``cos a = 2 / (1 + t^2) - 1`` and ``sin a = 2 t / (1 + t^2)``, one function instead of two. As
    precise: an error of t moves the sine by no more of itself, and the cosine by no more of 1.
    """
    tangent = np.tan(half, out=half)
    np.multiply(tangent, tangent, out=cosines)
    np.add(cosines, 1.0, out=cosines)
    np.divide(radius, cosines, out=cosines)
    np.add(cosines, cosines, out=cosines)
    np.multiply(cosines, tangent, out=sines)
    np.subtract(cosines, radius, out=cosines)


class InTorch:
    """Makes normals by torch's logarithm, cosine and sine, which run in torch's threads."""

    def __init__(self, count: int) -> None:
        self.words = _empty(count, torch.int64).numpy()
        self._spare = _empty(count, torch.float64)

    def needed(self, count: int) -> np.ndarray:
        """Return the place of the words for ``count`` normals."""
        return self.words[: count + count % 2]

    def add(self, piece: Tensor, std: float) -> None:
        noise = self.normals(piece.numel(), std).view(piece.shape)
        if piece.device.type == "cpu":
            # As piece.add_(noise), which allocates a float64 copy: new pages every time, at the price of the noise.
            total = self._spare[: piece.numel()].view(piece.shape)
            piece.copy_(total.copy_(piece).add_(noise))
        else:
            piece.add_(noise.to(torch.float32).to(piece.device))  # such devices may lack float64

    def normals(self, count: int, std: float) -> Tensor:
        """Return ``count`` normals times ``std``, float64; valid until the next call. Uses the words up."""
        pairs = (count + 1) // 2
        words, uniforms = torch.from_numpy(self.words[: 2 * pairs]), self._spare[: 2 * pairs]
        words[:pairs].bitwise_or_(1)  # u = 0 would be an infinite normal
        uniforms.copy_(words)
        radius, angle = uniforms[:pairs], uniforms[pairs:]
        radius.abs_().mul_(2.0**-63).log_().mul_(-2.0).sqrt_().mul_(std)
        angle.mul_(math.pi * 2.0**-63)
        normals = words.view(torch.float64)
        torch.cos(angle, out=normals[:pairs])
        torch.sin(angle, out=normals[pairs:])
        return normals.view(2, pairs).mul_(radius).view(-1)[:count]


def _empty(count: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(count + count % 2, dtype=dtype, device="cpu")  # pairs


@functools.cache
def vectorised() -> bool:
    """Return whether NumPy computes logarithms and tangents of float64 by more than the instructions that every such processor has.

    Elsewhere than on Linux its builds have no vector code for the tangent, whatever they say.
    """
    functions = np.lib.introspect.opt_func_info(func_name="^(log|tan)$", signature="float64")
    used = [by["current"] for signatures in functions.values() for by in signatures.values()]
    return sys.platform == "linux" and len(used) == 2 and not any("baseline" in one for one in used)
