"""Turn the bytes of an image file into the numbers a model sees, by rules that depend on the file alone.

Every mode is brought to RGB by its own range, or refused by name: what saturates or goes black trains a model on nothing, in
silence. An image counts as it is shown: upright (EXIF), transparent parts on white, and the first one of several.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL import Image

_EIGHT_BITS = ("1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "HSV")
_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")
_SIXTEEN_BITS = 65535
_BITS_PER_SAMPLE, _PHOTOMETRIC, _ORIENTATION = 258, 262, 274  # tags of TIFF and EXIF


class Picture(NamedTuple):
    """``pixels``: ``[3, size, size]``, uint8, or float32 in 0..255 where the file has more bits. ``several``: pictures in it."""

    pixels: Tensor
    several: bool


def decoded(content: bytes, size: int) -> Picture:
    """Decode a whole file, and resize its first picture.

    Raises:
        ValueError: not a readable image, cut off, or of a mode without a fixed range. Doesn't name the file.
    """
    from PIL import Image, UnidentifiedImageError

    if not content:
        raise ValueError("it is empty (0 bytes)")
    try:
        with Image.open(io.BytesIO(content)) as image:
            # phones keep a small preview in the same file, and some formats can't hold several
            several = image.format not in ("MPO", "JPEG") and getattr(image, "n_frames", 1) > 1
            image.seek(0)
            image.load()
            shown = _upright(image)
            if (whole := _deep_range(image)) is not None:
                return Picture(_deep(shown, whole, size), several)
            resized = _rgb(shown).resize((size, size), Image.Resampling.BILINEAR)
            pixels = torch.from_numpy(np.array(resized)).permute(2, 0, 1).contiguous()
            return Picture(pixels, several)
    except UnidentifiedImageError as error:  # which names the buffer it was read from
        raise ValueError("it begins as no image file does that can be read") from error
    except Exception as error:  # whatever a decoder stumbles over in a damaged file
        said = " ".join(str(error).split())
        raise ValueError(said or type(error).__name__) from error


def as_input(pixels: Tensor) -> Tensor:
    """Return ``pixels`` of a :class:`Picture` as float32 in [-1, 1]."""
    return pixels.float().sub_(127.5).div_(127.5)


def _upright(image: Image.Image) -> Image.Image:
    """Turn an image as the camera was held. A damaged EXIF block tells nothing."""
    from PIL.Image import Transpose

    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:
        return image
    turns = {
        2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM, 5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90,
    }  # fmt: skip
    return image.transpose(turns[orientation]) if orientation in turns else image


def _deep_range(image: Image.Image) -> float | None:
    """Return the value of white in a grey picture of more than 8 bits; None for all others.

    Raises:
        ValueError: a mode whose values have no fixed range.
    """
    mode, tags = image.mode, getattr(image, "tag_v2", {})
    if mode in _EIGHT_BITS or mode in _ALPHA:
        return None
    if mode.startswith("I;16") and tags.get(_PHOTOMETRIC, 1) == 1:
        (bits,) = tags.get(_BITS_PER_SAMPLE, (16,))
        return 2.0**bits - 1
    if mode == "I" and image.format in ("PNG", "PPM"):  # Pillow's name for their 16 bits
        return _SIXTEEN_BITS
    raise ValueError(
        f"its mode is {mode!r} ({image.format}), whose values have no fixed range that shows what is black and what is white; save "
        "it with 8 bits a channel, or as 16-bit grey PNG"
    )


def _deep(image: Image.Image, white: float, size: int) -> Tensor:
    from PIL import Image

    grey = Image.fromarray(np.asarray(image).astype(np.float32) * np.float32(255 / white))
    resized = torch.from_numpy(np.array(grey.resize((size, size), Image.Resampling.BILINEAR)))
    return resized.clamp_(0, 255).expand(3, size, size).contiguous()


def _rgb(image: Image.Image) -> Image.Image:
    from PIL import Image

    if image.mode not in _ALPHA and "transparency" not in image.info:
        return image.convert("RGB")
    image = image.convert("LA") if image.mode == "La" else image
    seen = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen).convert("RGB")
