"""Standard normals for float32 sums, from random words: 64 bits for two, by Box and Muller's method in float32 arithmetic.

A pair of 32-bit words ``(v, w)`` gives ``u`` in (0, 1), a sign and the angle ``a`` in (-pi/2, pi/2); with ``r = sqrt(-2 ln u)``,
``+-(r cos a, r sin a)`` are two independent normals, as the sign turns the half circle onto the other half. By the sine s of
``a / 2``, ``cos a = 1 - 2 s^2`` and ``sin a = 2 s sqrt(1 - s^2)``: multiplications, additions, one square root, which every
processor has vector instructions for and rounds alike.

32 bits are too few, and float32 is too coarse, where a word lies near an end of its range: in far tails (u near 0) and for noise
near 0 (u near 1, or an angle near 0 or a right one). There, in one pair of 256, each word is continued by 32 further bits and all
is computed in float64. So u has 63 bits as in :mod:`groupclip.noise.boxmuller`: the tail runs on to 9.4 standard deviations, no
normal is 0, and each is exact to 1e-6 of ``1 + |z|``.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from .keystream import KEY_BYTES, Keystream

# Words. The further bits come from a stream of their own, so that a chunk takes as much of the main one whatever is in it.
_KEY = KEY_BYTES // 4
_END = 1 << 22  # of 2^32: how near an end is near
_LEAST, _MOST = 2.0**-40, 2.0**40  # standard deviations whose squares keep float32's precision, times r^2
# sin(x) = p (((p2 - p^2) p^2 + p1) p^2 + p0), p = _SCALE x, to 2^-29 for |x| <= pi / 4: the minimax polynomial of degree 7,
# scaled to a leading coefficient of 1.
_SCALE = 0.29504230805877077418
_P0, _P1, _P2 = (np.float32(p) for p in (3.3893443715201391222, -6.4892585769999481715, 3.7265428975571950628))


class InSingle:
    """Makes float32 normals by NumPy. ``std`` is within :func:`suits`."""

    def __init__(self, count: int) -> None:
        pairs = (count + 1) // 2
        self.words = torch.empty(2 * pairs + _KEY, dtype=torch.int32, device="cpu").numpy()
        self._spare = torch.empty(2 * pairs, dtype=torch.int32, device="cpu").numpy()
        self._near = torch.empty(2 * pairs, dtype=torch.bool, device="cpu").numpy()

    def needed(self, count: int) -> np.ndarray:
        """Return where the words for ``count`` normals go: a key, and two words a pair."""
        return self.words[: _KEY + count + count % 2]

    def add(self, piece: Tensor, std: float) -> None:
        target = piece.numpy()
        with np.errstate(all="ignore"):  # as in torch: a sum that is too large for a dtype is infinite there
            np.add(target, self.normals(target.size, std).reshape(target.shape), out=target)

    def normals(self, count: int, std: float) -> np.ndarray:
        """Return ``count`` normals times ``std``, float32; valid until the next call. Uses the words up."""
        with np.errstate(all="ignore"):  # what isn't finite is replaced
            return self._normals(count, std)

    def _normals(self, count: int, std: float) -> np.ndarray:
        pairs = (count + 1) // 2
        words = self.words[_KEY : _KEY + 2 * pairs]
        v, w = words[:pairs], words[pairs:]
        at, rare = self._rare(v, w, std)
        twice, square = self._spare[:pairs].view(np.uint32), self._spare[pairs : 2 * pairs].view(np.float32)
        np.left_shift(v.view(np.uint32), np.uint32(1), out=twice)
        np.copyto(square, twice)
        np.multiply(square, np.float32(2.0**-32), out=square)
        np.log(square, out=square)
        np.multiply(square, -_upwards(8 * std * std), out=square)  # (2 r std)^2
        radius = np.sqrt(square, out=square)
        np.bitwise_and(v, np.int32(-(2**31)), out=v)
        np.bitwise_or(radius.view(np.int32), v, out=radius.view(np.int32))

        x, sine, cosine = twice.view(np.float32), v.view(np.float32), w.view(np.float32)
        np.copyto(x, w, casting="unsafe")
        np.multiply(x, np.float32(_SCALE * math.pi * 2.0**-33), out=x)
        _sine(x, sine, cosine)
        np.multiply(sine, sine, out=x)
        np.subtract(np.float32(1), x, out=cosine)
        np.sqrt(cosine, out=cosine)
        np.multiply(sine, cosine, out=cosine)
        np.multiply(cosine, radius, out=cosine)  # the second normals, where w was
        np.subtract(np.float32(0.5), x, out=x)
        np.multiply(x, radius, out=sine)  # the first ones, where v was
        normals = words.view(np.float32)
        normals.reshape(2, pairs)[:, at] = rare
        return normals[:count]

    def _rare(self, v: np.ndarray, w: np.ndarray, std: float) -> tuple[np.ndarray, np.ndarray]:
        """Return which pairs have a word near an end, and their normals times ``std``, float64 ``[2, pairs]``."""
        pairs = len(v)
        ends, near = self._spare[:pairs].view(np.uint32), self._near[: 2 * pairs].reshape(2, pairs)
        for word, side in zip((v, w), near, strict=True):
            np.left_shift(word.view(np.uint32), np.uint32(1), out=ends)
            np.add(ends, np.uint32(_END), out=ends)  # modulo 2^32, so that both ends come together
            np.less(ends, np.uint32(2 * _END), out=side)
        at = np.flatnonzero(np.logical_or(near[0], near[1], out=near[0]))
        if len(at) == 0:
            return at, np.empty((2, 0))
        more = Keystream(self.words[:_KEY].tobytes(), "groupclip/noise/further bits").words(len(at))
        return at, _exactly(v[at], w[at], more, std)


def _exactly(v: np.ndarray, w: np.ndarray, more: np.ndarray, std: float) -> np.ndarray:
    """Return two normals, times ``std``, of each pair of words continued by the halves of a 64-bit one; float64 ``[2, pairs]``."""
    further_v, further_w = (more >> np.uint64(32)).astype(np.int64), (more & np.uint64(2**32 - 1)).astype(np.int64)
    u = ((v.astype(np.int64) & (2**31 - 1)) << 32) | further_v  # (u + 1/2) / 2^63
    left = (2**63 - 1) - u  # to 1
    small = (np.minimum(u, left) + 0.5) * 2.0**-63
    radius = std * np.sqrt(-2 * np.where(u < left, np.log(small), np.log1p(-small)))
    turn = (w.astype(np.int64) << 32) | further_w  # (turn + 1/2) pi / 2^64
    right = np.where(turn < 0, turn ^ -(2**63), (2**63 - 1) - turn)  # to the nearer right angle
    sides = np.sin((np.stack([right, turn]) + 0.5) * (math.pi * 2.0**-64))
    sides *= radius
    return np.where(v < 0, -sides, sides)


def _sine(x: np.ndarray, sine: np.ndarray, square: np.ndarray) -> None:
    """Writes the sine of ``x / _SCALE`` and the square of x; the three have one shape, and don't overlap."""
    np.multiply(x, x, out=square)
    np.subtract(_P2, square, out=sine)
    np.multiply(sine, square, out=sine)
    np.add(sine, _P1, out=sine)
    np.multiply(sine, square, out=sine)
    np.add(sine, _P0, out=sine)
    np.multiply(sine, x, out=sine)


def _upwards(number: float) -> np.float32:
    """Return the least float32 that isn't below ``number``: rounding doesn't make noise smaller."""
    near = np.float32(number)
    return near if float(near) >= number else np.nextafter(near, np.float32(np.inf))


def suits(std: float) -> bool:
    """Return whether float32 holds the noise of this standard deviation to its full precision."""
    return _LEAST <= std <= _MOST


def bytes_for(count: int) -> int:
    """Return what one workspace for ``count`` normals takes."""
    return 9 * (count + count % 2) + 4 * _KEY
