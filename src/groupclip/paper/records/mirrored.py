"""Scattering features in which an image and its mirror image are the same, normalised by what images of noise have.

Noise is added to every weight of a linear model, in proportion to the length of the features. So it pays to take away what says
nothing of the class. A thing and its mirror image are of one class: the features of both are added, and half of them are left.
Then each map gets mean 0 and variance 1 over images. Tramer and Boneh 2021 take those means and variances of the data, with noise.
Images of 1/f noise have nearly the same ones. They are constants, and no image of the data has a say in them.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ...tasks.scattering import scattered

_IMAGES = 300  # of noise
#: What photographs have, roughly: the spectrum's exponent; a colour's own part; contrast, from and to; spread of brightness.
_EXPONENT, _OWN, _CONTRASTS, _BRIGHTNESS = 1.2, 0.3, (0.1, 0.7), 0.3


def mirrored(images: Tensor) -> Tensor:
    """Return the features of images, each made of its image alone.

    Args:
        images: float ``[N, C, H, W]`` in [-1, 1], as of :func:`groupclip.tasks.scattering.scattered`.

    Returns:
        float32 ``[N, 81 C, H // 4, (W // 4 + 1) // 2]``.
    """
    mean, deviation = usual(*images.shape[1:])
    return (_both(images) - mean) / deviation


def everywhere(images: Tensor) -> Tensor:
    """Return the features of images as they are, for a network of convolutions; scaled by constants as :func:`mirrored` does.

    Returns:
        float32 ``[N, 81 C, H // 4, W // 4]``.
    """
    mean, deviation = usual(*images.shape[1:], both=False)
    return (scattered(images, groups=0) - mean) / deviation


def _both(images: Tensor) -> Tensor:
    """Add the features of each image and of its mirror image; the right half is the left one's mirror image, nearly."""
    both = scattered(images, groups=0) + scattered(images.flip(3), groups=0)
    return both[..., : (both.shape[3] + 1) // 2]


@functools.cache
def usual(channels: int, height: int, width: int, both: bool = True) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each map over images of noise, ``[81 C, 1, 1]``: the same at every call.

    both: of an image and its mirror image; False: of images as they are.
    """
    images = noise_images(_IMAGES, channels, height, width)
    maps = _both(images) if both else scattered(images, groups=0)
    return maps.mean((0, 2, 3))[:, None, None], maps.std((0, 2, 3))[:, None, None]


def noise_images(count: int, channels: int, height: int, width: int) -> Tensor:
    """Make images ``[count, C, H, W]`` in [-1, 1] whose spectrum falls about as 1 / f, as that of photographs does (Field 1987)."""
    generator = torch.Generator().manual_seed(0)
    down, across = (torch.fft.fftfreq(2 * side) for side in (height, width))  # a part is cut out: it isn't periodic
    frequency = (down[:, None].square() + across.square()).sqrt()
    frequency[0, 0] = frequency[0, 1]
    white = torch.randn(count, 1 + channels, 2 * height, 2 * width, generator=generator)
    parts = torch.fft.ifft2(torch.fft.fft2(white) / frequency**_EXPONENT).real[..., :height, :width]
    found = parts[:, :1] + _OWN * parts[:, 1:]
    found = found - found.mean((1, 2, 3), keepdim=True)
    least, most = _CONTRASTS
    contrast = least + (most - least) * torch.rand(count, 1, 1, 1, generator=generator)
    brightness = _BRIGHTNESS * torch.randn(count, 1, 1, 1, generator=generator)
    return (contrast * found / found.std((1, 2, 3), keepdim=True) + brightness).clamp(-1, 1)
