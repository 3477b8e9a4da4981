"""Records of a data set from the hub, from a folder, or made up: three sources, one shape, sizes verified."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ...errors import GroupClipError
from ..source import Hub, Local, MissingSource, Source, StandIn, needed, reason
from .facts import DATASETS, DatasetFacts
from .made import made_splits

Record = Mapping[str, Any]


class Records(Protocol):
    """A split: ``len`` and ``[int]``, which gives a mapping from column to value."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Record: ...


class WrongData(GroupClipError):
    """The data that was found isn't the published data set."""


def facts_of(dataset: str) -> DatasetFacts:
    """Return the public facts of a data set. ``ValueError`` for a name that isn't in the paper's tables."""
    if dataset not in DATASETS:
        raise ValueError(f"unknown data set {dataset!r}; data sets: {', '.join(DATASETS)}")
    return DATASETS[dataset]


def splits(dataset: str, source: Source) -> dict[str, Records]:
    """Return every split that the tables need, by its name.

    Guarantee: the columns of :class:`DatasetFacts` are there, and each split has the published size, unless the source is
    made up or a folder that says it holds a subset.

    Raises:
        MissingSource: data or packages that aren't here, and how to get them.
        WrongData: other columns or other sizes than published.
    """
    facts = facts_of(dataset)
    match source:
        case StandIn():
            return made_splits(facts, source)
        case Local():
            found = _from_folder(dataset, facts, source.folder / "data" / dataset)
            subset = source.subset
        case Hub():
            found = _from_hub(dataset, facts)
            subset = False
    for split, size in facts.sizes.items():
        if split not in found:
            raise WrongData(f"{dataset}: there is no split {split!r}, only {', '.join(found)}; get it again")
        _verify(f"{dataset}, split {split!r}", found[split], facts, None if subset else size)
    return {split: found[split] for split in facts.sizes}


def _verify(what: str, records: Records, facts: DatasetFacts, size: int | None) -> None:
    if not len(records):
        raise WrongData(f"{what} holds no record; get it again")
    missing = [column for column in facts.columns if column not in records[0]]
    if missing:
        raise WrongData(
            f"{what} has no column {', '.join(missing)}, only {', '.join(records[0])}; the hub's {facts.hub} has"
        )
    if size is not None and len(records) != size:
        raise WrongData(
            f"{what} holds {len(records):,} records, the published data set {size:,}: epsilon would be stated for another "
            "data set than the paper's. Get it again, or say that it is a part: --subset, Local(folder=.., subset=True)"
        )


def _from_hub(dataset: str, facts: DatasetFacts) -> dict[str, Records]:
    library = needed("datasets", f"data set '{dataset}'")
    try:
        return dict(library.load_dataset(facts.hub, facts.config, revision=facts.revision))
    except Exception as error:  # the libraries raise a dozen kinds for "can't be reached" and "isn't in the cache"
        name = ", ".join(repr(part) for part in (facts.hub, facts.config) if part)
        revision = f", revision={facts.revision!r}" if facts.revision else ""
        raise MissingSource(
            f"data set '{dataset}' couldn't be loaded ({reason(error)}). On a machine with internet access, "
            f'unset HF_HUB_OFFLINE and run: python -c "import datasets; datasets.load_dataset({name}{revision})'
            f".save_to_disk('FOLDER/data/{dataset}')\"; then give --data-folder FOLDER"
        ) from error


def _from_folder(dataset: str, facts: DatasetFacts, folder: Path) -> dict[str, Records]:
    if not folder.is_dir():
        raise MissingSource(
            f"data set '{dataset}': there is no folder {folder}. Write it with datasets' save_to_disk, or put the parquet "
            f"files of https://huggingface.co/datasets/{facts.hub} there"
        )
    library = needed("datasets", f"data set '{dataset}'")
    if (folder / "dataset_dict.json").is_file():
        return dict(library.load_from_disk(str(folder)))
    files = {split: _parquet(folder, split) for split in facts.sizes}
    absent = [split for split, found in files.items() if not found]
    if absent:
        raise MissingSource(
            f"{folder} holds neither dataset_dict.json (datasets' save_to_disk) nor parquet files for the split "
            f"{', '.join(absent)}, named as on the hub: {absent[0]}-00000-of-00001.parquet or {absent[0]}/0000.parquet"
        )
    return dict(library.load_dataset("parquet", data_files=files))


def _parquet(folder: Path, split: str) -> list[str]:
    """Return the hub's names: ``<split>-00000-of-00001.parquet``, or ``<split>/0000.parquet`` in converted revisions."""
    return sorted(
        str(file)
        for file in folder.rglob("*.parquet")
        if file.stem == split or file.name.startswith(f"{split}-") or file.parent.name == split
    )


class Columns(Sequence[tuple[Any, ...]]):
    """A split as tuples of the columns that are used, read one record at a time."""

    def __init__(self, records: Records, columns: Sequence[str]) -> None:
        self._records, self._columns = records, tuple(columns)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        record = self._records[int(index)]
        return tuple(record[column] for column in self._columns)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return (self[i] for i in range(len(self)))
