"""Images that lie in one ``.npz`` file a data set: read once, kept as bytes, made into numbers batch by batch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...errors import GroupClipError

SIDE = 32  # pixels


class MissingImages(GroupClipError):
    """A file of images that isn't there, or that holds something else."""


@dataclass(frozen=True, eq=False)
class Images:
    """Records with labels: ``pixels`` uint8 ``[N, C, 32, 32]``, ``labels`` int64 ``[N]``, ``classes`` how many kinds there are.

    As a data set its items are row numbers, and :meth:`batch` is the collate function: one gather a micro-batch instead of
    one object a record.
    """

    pixels: Tensor
    labels: Tensor
    classes: int

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> int:
        return range(len(self))[row]

    def batch(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return images ``[B, C, 32, 32]`` in [-1, 1] and labels ``[B]``. The scaling is constant: no statistic of records."""
        chosen = torch.tensor(rows, dtype=torch.long)
        return scaled(self.pixels[chosen]), self.labels[chosen]

    def first(self, records: int) -> Images:
        """Return the first so many."""
        return Images(self.pixels[:records], self.labels[:records], self.classes)


def scaled(pixels: Tensor) -> Tensor:
    """Turn bytes into floats in [-1, 1]."""
    return (pixels.float() - 127.5) / 127.5


@functools.cache
def read(file: Path) -> tuple[Images, Images]:
    """Train and test images of an ``.npz`` file.

    Its members are either ``train_d``, ``train_y``, ``test_d``, ``test_y``: colours of 6 bits as planes green, red - green and
    blue - green ``[3, N, 32, 32]``, each differenced along rows and columns modulo 256 (such planes pack well); or
    ``train_x``, ...: plain grey bytes ``[N, H, W]`` of at most 32 x 32, which are padded with black.

    Raises:
        MissingImages: no such file, or other members.
    """
    if not file.exists():
        raise MissingImages(
            f"no {file}: an .npz file with train_d, train_y, test_d, test_y (coded colours) or train_x, .. (grey)"
        )
    with np.load(file) as members:
        if {"train_d", "train_y", "test_d", "test_y", "classes"} <= set(members):
            pixels = {split: _colours(members[f"{split}_d"]) for split in ("train", "test")}
        elif {"train_x", "train_y", "test_x", "test_y", "classes"} <= set(members):
            pixels = {split: _grey(members[f"{split}_x"]) for split in ("train", "test")}
        else:
            raise MissingImages(f"{file} holds {', '.join(sorted(members))}: no images that can be read here")
        labels = {split: torch.from_numpy(members[f"{split}_y"].astype(np.int64)) for split in ("train", "test")}
        classes = len(members["classes"])
    train, test = (Images(pixels[split], labels[split], classes) for split in ("train", "test"))
    return train, test


def _colours(planes: np.ndarray) -> Tensor:
    """Turn coded ``[3, N, 32, 32]`` into ``[N, 3, 32, 32]`` RGB."""
    green, red, blue = planes.cumsum(-1, dtype=np.uint8).cumsum(-2, dtype=np.uint8)
    return torch.from_numpy(np.stack([green + red, green, green + blue], 1) * np.uint8(4) + np.uint8(2))


def _grey(pixels: np.ndarray) -> Tensor:
    """Turn ``[N, H, W]`` into ``[N, 3, 32, 32]``, the same in three colours and in the middle."""
    above, left = (SIDE - pixels.shape[1]) // 2, (SIDE - pixels.shape[2]) // 2
    padded = np.zeros((len(pixels), SIDE, SIDE), dtype=np.uint8)
    padded[:, above : above + pixels.shape[1], left : left + pixels.shape[2]] = pixels
    return torch.from_numpy(padded)[:, None].expand(-1, 3, -1, -1)


def distorted(images: Tensor, generator: torch.Generator, *, most: int = 4) -> Tensor:
    """Return each image mirrored or not, and shifted by at most so many pixels both ways; for public pretraining.

    Args:
        images: ``[N, C, H, W]``; what comes in at the edges is zero, the middle grey.
    """
    n, _, height, width = images.shape
    rows = torch.arange(height) + torch.randint(0, 2 * most + 1, (n, 1), generator=generator)
    columns = torch.arange(width) + torch.randint(0, 2 * most + 1, (n, 1), generator=generator)
    mirror = torch.randint(0, 2, (n, 1), generator=generator, dtype=torch.bool)
    columns = torch.where(mirror, columns.flip(1), columns)
    padded = torch.nn.functional.pad(images, (most, most, most, most))
    which = torch.arange(n)
    return padded[which[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
