"""CIFAR-10, CIFAR-100, SVHN, GTSRB and Food-101 for vision transformers at 224 pixels.

Each image is resized, whole and bicubically, to a square and normalised with the checkpoint's own constants; nothing is
computed from the private images. No augmentation: neither the paper nor the authors' public code names one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from ..source import needed
from .records import Columns, Records
from .scoring import Tensors, accuracy

Item = tuple[Tensor, int]


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """``(x / 255 - mean) / std`` for each channel: what the checkpoint was pretrained with, whatever the data."""

    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)


class Images(Dataset[Item], Sequence[Item]):
    """Labelled images as (uint8 ``[3, size, size]``, label), decoded and resized when they are read."""

    def __init__(self, records: Records, columns: tuple[str, ...], size: int) -> None:
        self._rows, self._size = Columns(records, columns), size
        self._bicubic = needed("PIL.Image", "an image data set").Resampling.BICUBIC

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        image, label = self._rows[index]
        square = image.convert("RGB").resize((self._size, self._size), self._bicubic)
        return torch.from_numpy(np.array(square)).permute(2, 0, 1), int(label)


@dataclass(frozen=True)
class ImageBatches:
    """Lists of :class:`Images` items to (images ``[B, 3, size, size]``, labels ``[B]``)."""

    normalisation: Normalisation

    def __call__(self, items: list[Item]) -> Tensors:
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in (self.normalisation.mean, self.normalisation.std))
        pixels = torch.stack([image for image, _ in items])
        return (pixels / 255 - mean) / std, torch.tensor([label for _, label in items])


def logits(model: nn.Module, batch: Tensors) -> Tensor:
    """Return ``[B, classes]``."""
    return model(batch[0])


def losses(model: nn.Module, batch: Tensors) -> Tensor:
    """Return cross-entropy of each image, ``[B]``."""
    return F.cross_entropy(logits(model, batch), batch[1], reduction="none")


def score(model: nn.Module, tests: dict[str, Images], collate: ImageBatches) -> dict[str, float]:
    """Return accuracy in percent on each test set."""
    return {name: accuracy(model, test, collate, logits) for name, test in tests.items()}
