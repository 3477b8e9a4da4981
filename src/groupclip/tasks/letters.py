"""Drawn letters: public images to pretrain on, made from fonts that ship with matplotlib.

No record of any data set is involved, and digits are left out on purpose: what a model learns here is what
strokes look like, not the classes of a task.
"""

from __future__ import annotations

import string

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

LETTERS = string.ascii_letters
SIDE = 32  # pixels of a glyph before it is brought to the size of a model's input
FONTS = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique", "DejaVuSansMono",
    "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic",
    "DejaVuSerif-BoldItalic", "STIXGeneral", "STIXGeneralItalic", "STIXGeneralBol", "STIXGeneralBolIta",
    "cmb10", "cmr10", "cmss10", "cmtt10",
)  # fmt: skip

ROTATION = 0.25  # radians, at most, either way
SHEAR = 0.3
STRETCH = 0.15
SHIFT = 0.1  # of half the side
ELASTIC = 0.08  # deviation of the bending, of half the side
BOLDER, THINNER = 0.35, 0.15  # shares of the images


def draw_letters() -> tuple[Tensor, Tensor]:
    """Return every letter in every font: images float32 ``[52 * fonts, 1, 32, 32]`` in [0, 1], classes int64.

    Each glyph is scaled until its longer side fills the image.

    Raises:
        ModuleNotFoundError: matplotlib or Pillow isn't installed.
    """
    try:
        import matplotlib
        from PIL import Image, ImageDraw, ImageFont
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"drawing letters needs matplotlib (its fonts) and Pillow: {error}. Run: pip install 'groupclip[cli]'"
        ) from error
    images, classes = [], []
    for name in FONTS:
        font = ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/{name}.ttf", 72)
        for place, letter in enumerate(LETTERS):
            sheet = Image.new("L", (200, 200))
            ImageDraw.Draw(sheet).text((60, 50), letter, font=font, fill=255)
            glyph = sheet.crop(sheet.getbbox())
            scale = SIDE / max(glyph.size)
            width, height = (max(1, round(scale * side)) for side in glyph.size)
            image = Image.new("L", (SIDE, SIDE))
            image.paste(
                glyph.resize((width, height), Image.Resampling.BOX), ((SIDE - width) // 2, (SIDE - height) // 2)
            )
            images.append(np.array(image, dtype=np.float32))
            classes.append(place)
    return torch.from_numpy(np.stack(images)).div(255).unsqueeze(1), torch.tensor(classes)


def distort(glyphs: Tensor, generator: Generator) -> Tensor:
    """Turn, shear, stretch, shift, bend and thicken each glyph ``[B, 1, 32, 32]`` at random, in [0, 1]."""
    count = len(glyphs)

    def around(middle: float, reach: float) -> Tensor:  # [B], uniform
        return middle + reach * (2 * torch.rand(count, generator=generator) - 1)

    angle, across, along = around(0, ROTATION), around(1.05, STRETCH), around(1.05, STRETCH)
    first = torch.stack([angle.cos() * across, around(0, SHEAR) - angle.sin() * across, around(0, SHIFT)], -1)
    second = torch.stack([angle.sin() * along, angle.cos() * along, around(0, SHIFT)], -1)
    grid = F.affine_grid(torch.stack([first, second], 1), list(glyphs.shape), align_corners=False)
    bending = ELASTIC * torch.randn(count, 2, 4, 4, generator=generator)
    grid = grid + F.interpolate(bending, (SIDE, SIDE), mode="bicubic").permute(0, 2, 3, 1)
    image = F.grid_sample(glyphs, grid, align_corners=False)
    pick = torch.rand(count, 1, 1, 1, generator=generator)
    bold = F.max_pool2d(image, 3, stride=1, padding=1)
    thin = -F.max_pool2d(-image, 3, stride=1, padding=1)
    return torch.where(pick < BOLDER, bold, torch.where(pick < BOLDER + THINNER, thin, image)).clamp(0, 1)


def fit(images: Tensor, input_shape: tuple[int, ...]) -> Tensor:
    """Glyphs ``[B, 1, 32, 32]`` in [0, 1] as model inputs ``[B, C, H, W]`` in [-1, 1], bright on dark."""
    channels, height, width = input_shape
    mode = "area" if max(height, width) <= SIDE else "bilinear"
    return F.interpolate(images, (height, width), mode=mode).sub(0.5).div(0.5).expand(-1, channels, -1, -1)
