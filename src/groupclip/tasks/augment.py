"""Random crops and mirror images: what is done to one image is chosen without a look at any other, or at the image."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..arguments import whole


def augmented(images: Tensor, views: int = 1, *, crop: int = 4, flip: bool = True) -> Tensor:
    """Return random views of images.

    Args:
        images: ``[B, C, H, W]``.
        views: K of each.
        crop: pixels by which a view may be shifted, up or down and left or right; the image is continued by its reflection.
        flip: a view is mirrored, left and right, with probability one half.

    Returns:
        ``[B, K, C, H, W]``, drawn by torch's global generator.

    Raises:
        ValueError: images of another shape, or with no more pixels than ``crop`` in height or width.
    """
    whole("views", views, least=1)
    whole("crop", crop, least=0)
    if images.dim() != 4 or min(images.shape[2:]) <= crop:
        raise ValueError(f"images has shape {tuple(images.shape)}; crops of {crop} pixels need [B, C, H, W] that are larger")
    count, (height, width), device = len(images) * views, images.shape[2:], images.device
    down, right = (torch.randint(2 * crop + 1, (count, 1), device=device) for _ in range(2))
    rows, columns = (down + torch.arange(height, device=device), right + torch.arange(width, device=device))  # [B K, side]
    if flip:
        mirrored = torch.rand(count, 1, device=device) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    around = F.pad(images, (crop,) * 4, mode="reflect") if crop else images
    which = torch.arange(len(images), device=device).repeat_interleave(views)
    # one index for each dimension but that of the channels, which goes last and is put back
    drawn = around.movedim(1, 3)[which[:, None, None], rows[:, :, None], columns[:, None, :]].movedim(3, 1)
    return drawn.unflatten(0, (len(images), views))
