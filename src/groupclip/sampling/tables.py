"""What people have for a data set: tables whose index isn't the row, and things that only look like a data set."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler

from groupclip.sampling.weighted import WEIGHTED


@dataclass(frozen=True)
class Frame:
    """A pandas DataFrame as records: a dictionary a row. Its own index may be anything, and isn't the row."""

    table: Any

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: list[int]) -> list[dict[str, Any]]:
        return self.table.iloc[rows].to_dict("records")


@dataclass(frozen=True)
class Column:
    """A pandas Series as records, by place."""

    values: Any

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> Any:
        return self.values.iloc[row]


@dataclass(frozen=True)
class ArrowRows:
    """An Arrow table (or record batch) as records: a dictionary a row. ``table[0]`` is its first column."""

    table: Any

    def __len__(self) -> int:
        return self.table.num_rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: list[int]) -> list[dict[str, Any]]:
        return self.table.take(rows).to_pylist()


def as_records(dataset: Any) -> Any:
    """Return a data set whose item i is record i: the given one, or its rows.

    Raises:
        TypeError: what has no records by number: a stream, a path, a dictionary of columns or splits, a DataLoader.
    """
    pandas, arrow = sys.modules.get("pandas"), sys.modules.get("pyarrow")
    if pandas is not None and isinstance(dataset, pandas.DataFrame):
        if not dataset.columns.is_unique:
            raise TypeError("the DataFrame has two columns of one name, and a record is a dictionary: rename one")
        return Frame(dataset)
    if pandas is not None and isinstance(dataset, pandas.Series):
        return Column(dataset)
    if arrow is not None and isinstance(dataset, (arrow.Table, arrow.RecordBatch)):
        return ArrowRows(dataset)
    if isinstance(dataset, DataLoader):
        if isinstance(dataset.sampler, WeightedRandomSampler):
            raise TypeError(f"the data set is a DataLoader with a weighted sampler: {WEIGHTED}")
        raise TypeError(
            f"the data set is a DataLoader, whose {type(dataset.sampler).__name__} chooses its own batches (shuffled, in order), "
            "while the plan's epsilon is for batches drawn here: pass loader.dataset, and drop the loader"
        )
    if isinstance(dataset, (str, bytes, Path)):
        raise TypeError(
            f"the data set is {type(dataset).__name__}, a path or a text, and not its records. Load it: torchvision's "
            "ImageFolder(path), datasets.load_dataset('imagefolder', data_dir=path, split='train'), datasets.load_dataset("
            "'webdataset', data_files=shards, split='train') for shards, or groupclip train --task imagefolder:PATH"
        )
    if isinstance(dataset, Mapping) and len(dataset) and 0 not in dataset:
        raise TypeError(
            f"the data set is a {type(dataset).__name__} with the keys {', '.join(map(str, list(dataset)[:5]))}, and not a list of "
            "records. Of splits pass one, data['train']; of columns make TensorDataset(*columns.values()), or "
            "datasets.Dataset.from_dict(columns).with_format('torch')"
        )
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        raise TypeError(
            f"{type(dataset).__name__} can't be Poisson-sampled: a stream has no index, and each sample has "
            "to be drawn independently of the others; load it into a map-style data set (len and []): "
            "datasets.load_dataset(.., streaming=False), or a list"
        )
    return dataset
