"""Local twins of the hub: the made records of a data set as ``datasets`` would store them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest

from groupclip.paper.data.facts import DATASETS
from groupclip.paper.data.made import made_splits
from groupclip.paper.source import StandIn


def stored(dataset: str, records: int = 5) -> datasets.DatasetDict:
    """Every split of the data set as the library's own object, images as it encodes them."""
    facts = DATASETS[dataset]
    splits = made_splits(facts, StandIn(records=records))
    features = None
    if facts.kind == "image":
        image, label = facts.columns
        names = [f"class {i}" for i in range(facts.classes)]
        features = datasets.Features({image: datasets.Image(), label: datasets.ClassLabel(names=names)})
    return datasets.DatasetDict(
        {name: datasets.Dataset.from_list(rows, features=features) for name, rows in splits.items()}
    )


def saved(folder: Path, dataset: str, records: int = 5) -> Path:
    """As ``save_to_disk`` writes it, in the place where ``Local(folder=folder)`` looks."""
    stored(dataset, records).save_to_disk(str(folder / "data" / dataset))
    return folder


def as_parquet(folder: Path, dataset: str, names: str, records: int = 5) -> Path:
    """As parquet files below the same place; ``names`` is a path with ``{split}`` in it."""
    for split, rows in stored(dataset, records).items():
        file = folder / "data" / dataset / names.format(split=split)
        file.parent.mkdir(parents=True, exist_ok=True)
        rows.to_parquet(str(file))
    return folder


@pytest.fixture
def quiet_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library's cache in a folder of the test, and no progress bars."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()
