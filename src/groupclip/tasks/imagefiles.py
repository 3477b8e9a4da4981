"""Image files as a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from .images import again
from .pictures import as_input


class ImageFiles(Dataset[tuple[Tensor, Tensor]]):
    """Image files that were all decoded once, as float32 ``[3, size, size]`` in [-1, 1], with int64 labels.

    held: what was decoded then (uint8, or float32 in 0..255), if memory had room for it; else files are decoded when asked for.
    digests: of their contents then. Indexing raises :class:`UnreadableImages` for a file that isn't what it was.
    """

    def __init__(
        self,
        paths: tuple[Path, ...],
        labels: tuple[int, ...],
        size: int,
        digests: tuple[bytes, ...],
        held: tuple[Tensor, ...] | None = None,
    ) -> None:
        self.paths = paths
        self.labels = labels
        self.size = size
        self.digests = digests
        self.held = held

    def __getstate__(self) -> dict[str, Any]:
        """Leave decoded images out: as many tensors as images may be more than a process may have files open."""
        return {**self.__dict__, "held": None}

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        pixels = again(self.paths[index], self.size, self.digests[index]) if self.held is None else self.held[index]
        return as_input(pixels), torch.tensor(self.labels[index])
