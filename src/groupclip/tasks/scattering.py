"""Scattering features of images (Mallat 2012; two scales, eight angles): fixed wavelets, so nothing is learnt from the data.

An image becomes averages of the moduli of its wavelet coefficients, of order zero, one and two: 81 maps a channel, a quarter as
high and wide. The wavelets and their order are those of the package kymatio, which isn't needed. Tramer and Boneh 2021 found
that a private linear model on them beats private networks that begin from random weights.

What an image becomes depends on that image alone. So the features may be made once, before training, at no cost in privacy.
"""

from __future__ import annotations

import functools
import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

SCALES, ANGLES = 2, 8
MAPS = 1 + SCALES * ANGLES + ANGLES**2 * SCALES * (SCALES - 1) // 2  # of a channel: 81
GROUPS = 27  # of maps that are normalised together, as Tramer and Boneh do
_STEP = 2**SCALES
_CHUNK = 8  # images at once: what they become on the way then stays in the caches of a core


def scattered(images: Tensor, groups: int = GROUPS) -> Tensor:
    """Return the features of images, each made of its image alone.

    Args:
        images: float ``[N, C, H, W]``, at least 8 pixels high and wide.
        groups: of maps, each with mean 0 and variance 1 within one image; 0: they stay as they are.

    Returns:
        float32 ``[N, 81 C, H // 4, W // 4]``.

    Raises:
        ValueError: images that are too small, or groups that don't divide the maps.
    """
    if images.dim() != 4 or min(images.shape[2:]) < 2 * _STEP:
        raise ValueError(
            f"images has shape {tuple(images.shape)}; scattering takes [N, C, H, W] of at least 8 x 8 pixels"
        )
    maps = MAPS * images.shape[1]
    if groups and maps % groups:
        raise ValueError(f"groups={groups} doesn't divide {maps} maps: {images.shape[1]} channels have {MAPS} each")
    height, width = (side // _STEP for side in images.shape[2:])
    found = torch.empty(len(images), maps, height, width)
    for first in range(0, len(images), _CHUNK):
        chunk = images[first : first + _CHUNK].float()
        one = _of_channels(chunk.flatten(0, 1)).view(len(chunk), maps, height, width)
        found[first : first + _CHUNK] = F.group_norm(one, groups) if groups else one
    return found


def _of_channels(x: Tensor) -> Tensor:
    """Return ``[N, 81, H // 4, W // 4]`` of ``[N, H, W]``: order zero, then one, then two."""
    height, width = x.shape[1:]
    size = tuple(((side + _STEP) // _STEP + 1) * _STEP for side in (height, width))
    band, low = _bank(*size)
    above, left = (size[0] - height) // 2, (size[1] - width) // 2
    around = (left, size[1] - width - left, above, size[0] - height - above)
    freq = torch.fft.fft2(F.pad(x.unsqueeze(1), around, mode="reflect"))  # [N, 1, *size]

    def smooth(spectrum: Tensor, scale: int) -> Tensor:
        """Average over neighbourhoods of 4 pixels, keep one of each, and cut what was padded."""
        mean = torch.fft.ifft2(_folded(spectrum, low[scale], 2 ** (SCALES - scale))).real
        return mean[..., 1 : 1 + height // _STEP, 1 : 1 + width // _STEP]

    first, second = [], []
    for scale in range(SCALES):
        once = torch.fft.fft2(torch.fft.ifft2(_folded(freq, band[scale][0], 2**scale)).abs())  # [N, 8, ..]
        first.append(smooth(once, scale))
        for finer in range(scale + 1, SCALES):
            both = _folded(once.unsqueeze(2), band[finer][scale], 2 ** (finer - scale))  # [N, 8, 8, ..]
            twice = torch.fft.fft2(torch.fft.ifft2(both).abs())
            second.append(smooth(twice, finer).flatten(1, 2))
    return torch.cat([smooth(freq, 0), *first, *second], dim=1)


def _folded(spectrum: Tensor, filters: Tensor, by: int) -> Tensor:
    """Filter, then keep every ``by``-th pixel: in frequencies, the mean of the products over the parts that fall together."""
    height, width = (side // by for side in spectrum.shape[-2:])
    total: Tensor | None = None
    for top, left in itertools.product(range(0, by * height, height), range(0, by * width, width)):
        place = (..., slice(top, top + height), slice(left, left + width))
        part = spectrum[place] * filters[place]
        total = part if total is None else total.add_(part)
    assert total is not None
    return total.div_(by * by)


@functools.lru_cache(maxsize=4)
def _bank(height: int, width: int) -> tuple[list[list[Tensor]], list[Tensor]]:
    """Return, in frequencies, the wavelets ``[8, ..]`` by scale and by halvings of the image, and the low-pass by halvings."""
    band = []
    for scale in range(SCALES):
        angles = [(ANGLES - ANGLES // 2 - 1 - n) * math.pi / ANGLES for n in range(ANGLES)]
        waves = torch.stack(
            [_morlet(height, width, 0.8 * 2**scale, angle, 0.75 * math.pi / 2**scale) for angle in angles]
        )
        band.append(_by_halvings(waves, scale + 1))
    return band, _by_halvings(_gabor(height, width, 0.8 * 2 ** (SCALES - 1), 0.0, 0.0, 1.0), SCALES)


def _by_halvings(filters: Tensor, times: int) -> list[Tensor]:
    """Return a filter's frequencies, and those that are left of them when the image is halved, and so on."""
    found = [torch.fft.fft2(filters).real]
    for _ in range(times - 1):
        height, width = (side // 4 for side in found[-1].shape[-2:])
        rows = torch.cat([found[-1][..., :height, :], found[-1][..., -height:, :]], -2)
        found.append(torch.cat([rows[..., :width], rows[..., -width:]], -1))
    return [each.float() for each in found]


def _morlet(height: int, width: int, sigma: float, angle: float, frequency: float) -> Tensor:
    """Make a wave under a bell, with mean zero."""
    slant = 4 / ANGLES
    wave, bell = (_gabor(height, width, sigma, angle, f, slant) for f in (frequency, 0.0))
    return wave - wave.sum() / bell.sum() * bell


def _gabor(height: int, width: int, sigma: float, angle: float, frequency: float, slant: float) -> Tensor:
    """Make a wave under a bell, ``[height, width]`` complex, periodic."""
    y, x = torch.meshgrid(
        torch.arange(-2 * height, 3 * height, dtype=torch.float64),
        torch.arange(-2 * width, 3 * width, dtype=torch.float64),
        indexing="ij",
    )
    along, across = y * math.cos(angle) + x * math.sin(angle), x * math.cos(angle) - y * math.sin(angle)
    bell = torch.exp(-(along**2 + slant**2 * across**2) / (2 * sigma**2)) * slant / (2 * math.pi * sigma**2)
    wave = torch.polar(bell, frequency * along)
    return wave.view(5, height, 5, width).sum((0, 2))
