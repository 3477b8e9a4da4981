"""What a task is: two sets of labelled records, their public facts, and the options that load them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from torch.utils.data import TensorDataset

from .imagefiles import ImageFiles


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Choices about how files are read. All public. ``None`` means the task's own default.

    image_size: side in pixels that images are resized to (imagefolder; default 32).
    text_column, label_column: names in the CSV header (default ``text`` and ``label``).
    user_column: name of the one that says whose a row is; then users are protected, and not single rows.
    max_length: words kept of a text (default 64). vocabulary: hash buckets, padding included (default 8192).
    prefix: letters of a longer word's beginning that count as a word as well (default 0: none do).
    encoder: "minilm", or a folder of a pretrained encoder, whose features a text becomes in place of hashed words; max_length
        is of its tokens then (default 128).
    features: "scattering": what images become in place of their pixels, each made of its image alone (mnist, fashion-mnist).
    classes: the label set, in order. Without it the labels found in the data are taken as public.
    test: path of a test set. public: path of data that needs no protection, for monitoring.
    """

    image_size: int | None = None
    text_column: str | None = None
    label_column: str | None = None
    user_column: str | None = None
    max_length: int | None = None
    vocabulary: int | None = None
    prefix: int | None = None
    encoder: str | Path | None = None
    features: str | None = None
    classes: tuple[str, ...] | None = None
    test: str | Path | None = None
    public: str | Path | None = None

    def given(self) -> tuple[str, ...]:
        """Return names of the options that were set."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) is not None)


Records = TensorDataset | ImageFiles


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """Labelled records and the public facts about them.

    name: the word that ``load_task`` was given, without the path.
    train: the private records. owners: whose each of them is, where users are to be protected; else None.
    test: held-out records, NOT covered by the privacy guarantee.
    public: records that need no protection at all (fit for a live loss curve), or None.
    input_shape: of one input, (C, H, W) for images or (T,) for token ids, (D,) for features of texts.
    vocabulary: number of token ids (0 is padding) for text as token ids, else None.
    description: JSON-able facts for reports: no path, no statistic of the records but their number.
    remarks: what was left out, and why, for whoever owns the data; it goes into no file.
    """

    name: str
    kind: Literal["image", "text"]
    train: Records
    owners: tuple[str, ...] | None = None
    test: Records
    public: Records | None
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    vocabulary: int | None = None
    description: Mapping[str, object] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def unit(self) -> str:
        """Whom a run on the task protects: "sample" or "user"."""
        return "sample" if self.owners is None else "user"

    @property
    def units(self) -> int:
        """The number of units, which is public."""
        return len(self.train) if self.owners is None else len(set(self.owners))
