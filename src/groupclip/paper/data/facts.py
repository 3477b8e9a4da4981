"""What is public about each data set: its place on the hub, its columns, its classes and its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["image", "sentences", "table-to-text"]


@dataclass(frozen=True, kw_only=True)
class DatasetFacts:
    """A published data set as the hub stores it.

    kind: what a record is.
    hub, config, revision: arguments of ``datasets.load_dataset``.
    columns: the parts of a record that are used, in the order (image or texts .., label).
    classes: number of labels 0 .. classes - 1; 0 where there are none.
    train: the split of private records.
    tests: name of the score's test set -> split.
    sizes: split -> number of records, as published.
    licence: as the authors or the hub state it.
    """

    kind: Kind
    hub: str
    config: str | None = None
    revision: str | None = None
    columns: tuple[str, ...]
    classes: int
    train: str = "train"
    tests: Mapping[str, str]
    sizes: Mapping[str, int]
    licence: str = "not stated"


def _images(
    hub: str, columns: tuple[str, str], classes: int, train: int, test: int,
    *, config: str | None = None, split: str = "test", licence: str = "not stated",
) -> DatasetFacts:  # fmt: skip
    return DatasetFacts(
        kind="image", hub=hub, config=config, columns=columns, classes=classes, tests={"accuracy": split},
        sizes={"train": train, split: test}, licence=licence,
    )  # fmt: skip


def _glue(config: str, columns: tuple[str, ...], classes: int, train: int, **dev: int) -> DatasetFacts:
    tests = {split.replace("validation", "accuracy"): split for split in dev}
    return DatasetFacts(
        kind="sentences", hub="nyu-mll/glue", config=config, columns=(*columns, "label"), classes=classes, tests=tests,
        sizes={"train": train, **dev}, licence="GLUE: see the paper of each of its data sets",
    )  # fmt: skip


DATASETS: dict[str, DatasetFacts] = {
    "cifar10": _images("uoft-cs/cifar10", ("img", "label"), 10, 50_000, 10_000, config="plain_text"),
    "cifar100": _images("uoft-cs/cifar100", ("img", "fine_label"), 100, 50_000, 10_000, config="cifar100"),
    "svhn": _images(
        "ufldl-stanford/svhn", ("image", "label"), 10, 73_257, 26_032, config="cropped_digits", licence="non-commercial use"
    ),
    # The corrected training archive of 2019 (26,640 images), which torchvision and the authors' public code load; the
    # archive of 2011 has 39,209.
    "gtsrb": _images("tanganke/gtsrb", ("image", "label"), 43, 26_640, 12_630),
    "food101": _images("ethz/food101", ("image", "label"), 101, 75_750, 25_250, split="validation"),
    "mnli": _glue(
        "mnli", ("premise", "hypothesis"), 3, 392_702, validation_matched=9_815, validation_mismatched=9_832
    ),
    "qqp": _glue("qqp", ("question1", "question2"), 2, 363_846, validation=40_430),
    "qnli": _glue("qnli", ("question", "sentence"), 2, 104_743, validation=5_463),
    "sst2": _glue("sst2", ("sentence",), 2, 67_349, validation=872),
    "e2e": DatasetFacts(
        kind="table-to-text", hub="tuetschek/e2e_nlg", revision="refs/convert/parquet", classes=0,
        columns=("meaning_representation", "human_reference"), tests={"e2e": "test"},
        sizes={"train": 42_061, "validation": 4_672, "test": 4_693}, licence="CC BY-SA 4.0",
    ),
}  # fmt: skip
