"""Noise whose output has no low-order bits that could tell the data: integers on a grid, drawn exactly.

A float sum plus a float normal can be attacked (Mironov, CCS 2012; Jin et al. 2021; Haney et al. 2022): which doubles
can come out depends on the secret sum, and the float normal has gaps and a last value. Here the sum is first rounded to
a grid, then integer noise is added, and both are data-independent in what they can give.

The noise of a coordinate is ``round(s Z)``, Z an exact standard normal, in units of the grid. For a sum x on the grid,
``x + round(s Z) = round(x + s Z)``: what is released is the continuous Gaussian mechanism followed by rounding, which is
post-processing. So every accountant for the Gaussian holds as it is, sampled batches included. The discrete Gaussian of
Canonne, Kamath and Steinke (2020) would have needed one of its own: dp-accounting 0.6 has none for it under sampling, and
its convolution isn't Gaussian.

``round(s Z)`` is drawn by Box and Muller's method in float64 with a bound on its error. Where the bound can't tell two
integers apart (about 1 of 10^6 coordinates) the same random bits, continued by 192 further ones, are computed in 100
decimal digits. What is left is below 2^-150 a coordinate.

Not covered: the float summation of clipped gradients, before the rounding. Its error is bounded by
``u n sum_i ||g_i||`` for n addends in a dtype of unit roundoff u (Higham 2002, section 4.2), which is 1e-10 R at
n = 1,000 in float64 and 0.06 R in float32: train in float64 where that attack (Casacuberta et al. 2022) matters.
"""

import decimal
import math
from decimal import Decimal
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from groupclip.noise.boxmuller import turned
from groupclip.noise.keystream import Keystream, new_key, refuse_copy
from groupclip.noise.normals import CHUNK, pieces
from groupclip.noise.sources import check_target

GRID_BITS = 20  # the grid is the power of two in (2^-21, 2^-20] times the standard deviation
_DOUBT = 2.0**-41  # bound on the error of a float64 draw of Z: see nearly
_SMALL = 2.0**-9  # radius below which the error of the logarithm is too large
_FEW = 2**43  # word below which the bits that aren't drawn matter
_MORE = 192  # further bits for each uniform of a coordinate in doubt
_PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798214808651"
)
_CONTEXT = decimal.Context(prec=110)


def grid(std: float) -> float:
    """Return the grid for noise of this standard deviation: a power of two, so that every dtype holds its multiples."""
    return 2.0 ** (math.floor(math.log2(std)) - GRID_BITS)


def rounding(coordinates: int) -> float:
    """Return how much further apart rounding moves two neighbouring sums of ``coordinates`` in all, over the noise.

    Each coordinate of each sum moves by half a grid at most, so their difference by one grid, 2^-20 s at most.
    """
    return math.sqrt(coordinates) * 2.0**-GRID_BITS


def planned_for(sigma: float, coordinates: int) -> float:
    """Return the noise multiplier to add so that, with the rounding, ``sigma`` is what it amounts to.

    Raises:
        ValueError: so many coordinates that the rounding alone would use the budget up.
    """
    left = 1 / sigma - rounding(coordinates)
    if left <= 0:
        raise ValueError(
            f"noise_multiplier={sigma:g} on {coordinates:,} coordinates: the rounding to a grid would move neighbours "
            f"as far apart as the budget allows ({rounding(coordinates):.3g} of {1 / sigma:.3g}); train fewer parameters"
        )
    return 1 / left


class HardenedNoise:
    """Rounds to a grid and adds integer Gaussian noise, exactly drawn.

    On the CPU, in one thread: 2.5 times as slow as one of :class:`groupclip.noise.SecureNoise`.

    Guarantee: after ``add_(x, std)``, x is the rounding to ``grid(std)`` (and then to its dtype) of the sum of the rounded
    x and continuous ``N(0, std^2)``, up to 2^-150 a coordinate. Secrecy of the key as in
    :class:`groupclip.noise.SecureNoise`. The caller adds :func:`planned_for` noise to pay for the rounding.
    """

    secure: bool = True
    hardened: bool = True

    def __init__(self, key: bytes | None = None) -> None:
        self._stream = Keystream(new_key() if key is None else key, "groupclip/noise/hardened")
        self.key_was_given = key is not None

    def __repr__(self) -> str:
        return "HardenedNoise()"

    def add_(self, tensor: Tensor, std: float) -> None:
        """Rounds ``tensor`` to the grid and adds noise, in place. Errors as those of :class:`SecureNoise`."""
        check_target(tensor, std)
        if std == 0 or tensor.numel() == 0:
            return
        unit = grid(std)
        with torch.no_grad():
            for piece in pieces(tensor, CHUNK):
                on_grid = (piece.to("cpu", torch.float64) / unit).round_()
                noise = torch.from_numpy(self._draw(piece.numel(), std / unit)).view(piece.shape)
                piece.copy_(on_grid.add_(noise).mul_(unit))  # integers below 2^53 add exactly

    def _draw(self, count: int, std: float) -> np.ndarray:
        """Return ``count`` draws of ``round(std Z)``, float64, from words (v, w): see :func:`nearly`."""
        pairs = (count + 1) // 2
        words = self._stream.words(2 * pairs)
        v, w = words[:pairs], words[pairs:]
        found, sure = nearly(v, w)
        found *= std
        nearest = np.rint(found)
        found -= nearest
        doubtful = np.abs(np.abs(found, out=found) - 0.5) <= std * _DOUBT
        for pair in np.flatnonzero(doubtful[0] | doubtful[1] | ~sure):
            more = [int.from_bytes(self._stream.words(_MORE // 64).tobytes(), "little") for _ in range(2)]
            nearest[:, pair] = exactly(int(v[pair]), int(w[pair]), more[0], more[1], std)
        return nearest.reshape(-1)[:count]

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        refuse_copy(self)


def nearly(v: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two normals of each pair of words, ``[2, pairs]``, and which pairs are as exact as :data:`_DOUBT`, ``[pairs]``.

    ``u = (v + a) 2^-64``, ``t = (w + b) 2^-64`` with a, b in (0, 1) the bits that aren't drawn; radius ``r = sqrt(-2 ln u)``,
    angle ``2 pi t``. float64 knows ln u to ``2^-64 / u + 2^-53`` and the rounding of the logarithm, so r to 2^-43 where
    ``v >= 2^43`` and ``r > 2^-9``. Sine and cosine are made from the tangent of half the angle
    (:func:`groupclip.noise.boxmuller.turned`): the angle is known to 2^-49; the tangent, to 4 units in its last place, moves either
    by 2^-50 at most; four roundings follow: both are known to 2^-48. As ``r < 5.5`` there, together 2^-42, half of what is allowed.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        radius = v.astype(np.float64)
        radius *= 2.0**-64
        np.log(radius, out=radius)
        radius *= -2.0
        np.sqrt(radius, out=radius)
        half = w.astype(np.float64)
        half *= math.pi * 2.0**-64
        found = np.empty((2, len(v)))
        turned(radius, half, *found)
    return found, (v >= np.uint64(_FEW)) & (radius > _SMALL)


def exactly(v: int, w: int, more_v: int, more_w: int, std: float) -> tuple[float, float]:
    """Return the integers nearest to ``std`` times the two normals of the uniforms ``v more_v``, ``w more_w`` (256 bits each)."""
    with decimal.localcontext(_CONTEXT):
        scale = Decimal(2) ** -(64 + _MORE)
        u = (Decimal((v << _MORE) + more_v) + Decimal("0.5")) * scale
        radius = (-2 * u.ln()).sqrt() * Decimal(std)
        cosine, sine = _circle((Decimal((w << _MORE) + more_w) + Decimal("0.5")) * scale)
        found = [float((radius * side).to_integral_value(decimal.ROUND_HALF_EVEN)) for side in (cosine, sine)]
    return found[0], found[1]


def _circle(turn: Decimal) -> tuple[Decimal, Decimal]:
    """Cosine and sine of ``2 pi turn``, by Taylor's series; ``turn`` in [0, 1]."""
    angle = 2 * _PI * (turn - 1 if turn > Decimal("0.5") else turn)
    sums, term, order = [Decimal(0), Decimal(0)], Decimal(1), 0
    while abs(term) > Decimal("1e-108") or order < 4:
        sums[order % 2] += term if order % 4 < 2 else -term
        order += 1
        term *= angle / order
    return sums[0], sums[1]
