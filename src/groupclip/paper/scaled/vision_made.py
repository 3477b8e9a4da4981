"""Made images in the format of the real files, so that the experiment can be tried without any data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .vision_data import SIDE


def write_made(file: Path, *, classes: int, train: int, test: int, seed: int) -> None:
    """Squares of one colour a class on noise, coded as :func:`groupclip.paper.scaled.vision_data.read` expects."""
    random = np.random.default_rng(seed)
    colours = random.integers(0, 64, (classes, 3))
    members: dict[str, Any] = {"classes": np.array([f"class {i}" for i in range(classes)])}
    for split, records in (("train", train), ("test", test)):
        labels = random.integers(0, classes, records)
        pixels = random.integers(0, 64, (records, 3, SIDE, SIDE))
        pixels[:, :, 4:28, 4:28] = colours[labels][:, :, None, None]
        members[f"{split}_d"] = coded(pixels.astype(np.uint8))
        members[f"{split}_y"] = labels.astype(np.uint8)
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, **members)


def coded(pixels: np.ndarray) -> np.ndarray:
    """Write 6-bit RGB ``[N, 3, 32, 32]`` as planes ``[3, N, 32, 32]``: green, red - green, blue - green, differenced modulo 256."""
    red, green, blue = pixels.transpose(1, 0, 2, 3).astype(np.uint8)
    planes = np.stack([green, red - green, blue - green])
    down = np.diff(planes, axis=-2, prepend=np.zeros_like(planes[..., :1, :]))
    return np.diff(down, axis=-1, prepend=np.zeros_like(down[..., :1]))
