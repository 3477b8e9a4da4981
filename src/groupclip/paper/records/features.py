"""Frozen features of records, made once and kept as float16 beside the results. Each is made of its own record alone."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...tasks.encoder import encoder
from ...tasks.scattering import scattered
from ..scaled.vision_data import read, scaled
from ..source import needed_files
from .efficientnet import efficientnet
from .mirrored import everywhere, mirrored

_CHUNKS = {"scattering": 256, "mirrored": 256, "scaled": 256, "pixels": 4096, "efficientnet": 64, "minilm": 4096}  # records at once
_ENLARGED = 96  # pixels, for the encoder of images
_TOKENS = 64

#: By split, train and test: a function from rows to their features ``[len(rows), ..]``, and the labels of all ``[N]``.
Made = dict[str, tuple[Callable[[range], Tensor], Tensor]]


@dataclass(frozen=True, eq=False)
class Features:
    """Records as features: ``values`` float16 ``[N, D]`` on the disk, ``labels`` int64 ``[N]``, ``classes`` how many kinds.

    As a data set its items are row numbers, and :meth:`batch` is the collate function.
    """

    values: np.ndarray
    labels: Tensor
    classes: int

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> int:
        return range(len(self))[row]

    def batch(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return features float32 ``[B, D]`` and labels ``[B]``."""
        chosen = np.asarray(rows, dtype=np.int64)
        return torch.from_numpy(self.values[chosen]).float(), self.labels[torch.from_numpy(chosen)]


def features(kind: str, file: Path, kept: Path, first: int | None = None) -> tuple[Features, Features]:
    """Return training and held-out records, whose features are made if they aren't kept.

    Args:
        kind: a key of :data:`MAKERS`.
        kept: folder for what is made once.
        first: so many training records alone, the first ones; None: all.

    Raises:
        MissingSource: no such file, or an encoder that isn't installed.
    """
    needed_files(file.parent, {file.name: "the data"})
    name = f"{file.name.split('.')[0]}-{kind}-{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"
    made = MAKERS[kind](file, kept)
    if first is not None:
        make, labels = made["train"]
        made["train"] = (make, labels[:first])
    found = []
    for split, (make, labels) in made.items():
        path = kept / f"{name}-{split}{first if first is not None and split == 'train' else ''}.npy"
        if not path.exists():
            _write(path, make, len(labels), _CHUNKS[kind])
        values = np.load(path, mmap_mode="r")
        if len(values) != len(labels):
            raise ValueError(f"{path} holds {len(values)} rows for {len(labels)} records: delete it, and it is made again")
        found.append(Features(values, labels, int(labels.max()) + 1))
    train, test = found
    return train, test


def _write(path: Path, make: Callable[[range], Tensor], count: int, size: int) -> None:
    """Write features, whole or not at all. Parts of a call that was stopped are kept, and aren't made again."""
    parts = path.with_suffix(".parts")
    parts.mkdir(parents=True, exist_ok=True)
    chunks = [range(first, min(first + size, count)) for first in range(0, count, size)]
    files = [parts / f"{rows.start}-{rows.stop}.npy" for rows in chunks]
    with torch.no_grad():
        for file, rows in zip(files, chunks, strict=True):
            if not file.exists():
                under_way = file.with_suffix(f".{os.getpid()}.tmp")
                with under_way.open("wb") as stream:
                    np.save(stream, make(rows).to(torch.float16).flatten(1).numpy())
                os.replace(under_way, file)
    whole = path.with_suffix(f".{os.getpid()}.tmp")
    held = np.lib.format.open_memmap(whole, "w+", np.float16, (count, np.load(files[0], mmap_mode="r").shape[1]))
    for file, rows in zip(files, chunks, strict=True):
        held[rows.start : rows.stop] = np.load(file)
    held.flush()
    os.replace(whole, path)
    shutil.rmtree(parts)


def _of_images(function: Callable[[Tensor], Tensor]) -> Callable[[Path, Path], Made]:
    """Make features by a function of images in [-1, 1], which have three colours, or one and the 28 x 28 pixels that they had."""

    def maker(pixels: Tensor) -> Callable[[range], Tensor]:
        cut = pixels[:, :1, 2:30, 2:30] if _is_grey(pixels) else pixels
        return lambda rows: function(scaled(cut[rows.start : rows.stop]))

    def made(file: Path, _: Path) -> Made:
        sets = dict(zip(("train", "test"), read(file), strict=True))
        return {split: (maker(images.pixels), images.labels) for split, images in sets.items()}

    return made


def _is_grey(pixels: Tensor) -> bool:
    """Return whether the file held grey images, which are read as three equal colours."""
    few = pixels[:64]
    return bool((few[:, 0] == few[:, 1]).all() and (few[:, 0] == few[:, 2]).all())


def _efficientnet(file: Path, kept: Path) -> Made:
    """Features of EfficientNet-Lite0 (ImageNet, frozen) of images at 96 pixels, each image's with mean 0 and variance 1."""
    model = efficientnet(kept)

    def maker(pixels: Tensor) -> Callable[[range], Tensor]:
        def make(rows: range) -> Tensor:
            x = (pixels[rows.start : rows.stop].float() - 127) / 128
            x = F.interpolate(x, size=(_ENLARGED, _ENLARGED), mode="bilinear", align_corners=False)
            out = model(x)
            return F.layer_norm(out, out.shape[1:])

        return make

    sets = dict(zip(("train", "test"), read(file), strict=True))
    return {split: (maker(images.pixels), images.labels) for split, images in sets.items()}


def _minilm(file: Path, _: Path) -> Made:
    """Features of MiniLM-L6 (frozen), each text alone, of unit size a coordinate."""
    found = encoder("minilm", _TOKENS)
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]

    def maker(texts: list[str]) -> Callable[[range], Tensor]:
        def make(part: range) -> Tensor:
            out = found.encode(texts[part.start : part.stop])
            return out * out.shape[1] ** 0.5

        return make

    splits = {split: [row for row in rows if row["split"] == name] for split, name in (("train", "train"), ("test", "dev"))}
    return {
        split: (maker([row["text"] for row in part]), torch.tensor([row["label"] for row in part]))
        for split, part in splits.items()
    }


MAKERS: dict[str, Callable[[Path, Path], Made]] = {
    "scattering": _of_images(lambda images: scattered(images)),  # 27 groups of maps, normalised within each image
    "mirrored": _of_images(mirrored),
    "scaled": _of_images(everywhere),
    "pixels": _of_images(lambda images: images),
    "efficientnet": _efficientnet,
    "minilm": _minilm,
}
