"""Data that people have: tables, data sets of Hugging Face, shards, dictionaries and dataclasses; and what only looks like data."""

from __future__ import annotations

import dataclasses
import io
import json
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import groupclip as gc

KEY = bytes(range(32))
NUMBER = 40
PLAN = gc.Mechanism(dataset_size=NUMBER, expected_batch_size=10, steps=6, noise_multiplier=1.0)
X = torch.arange(NUMBER, dtype=torch.float32) / 8
Y = torch.arange(NUMBER) % 3
REFERENCE = TensorDataset(X, Y)


def drawn(dataset: Any, workers: int = 0) -> list[list[tuple[list[float], list[int]]]]:
    """What each micro-batch holds: x and y."""
    batches = gc.poisson_batches(dataset, PLAN, 4, key=KEY, num_workers=workers)
    return [[(torch.as_tensor(x).tolist(), y.tolist()) for x, y in map(fields, batch)] for batch in batches]


def fields(piece: Any) -> tuple[Any, Any]:
    if dataclasses.is_dataclass(piece):
        return piece.x, piece.more["y"]
    return tuple(piece.values()) if isinstance(piece, dict) else (piece[0], piece[1])


class Named(NamedTuple):
    x: Tensor
    y: Tensor


@dataclasses.dataclass(frozen=True)
class Record:
    x: float
    more: dict[str, int]
    name: str = "someone"


def columns() -> dict[str, list[Any]]:
    return {"x": X.tolist(), "y": Y.tolist()}


def frame() -> Any:
    """With an index that is no row: labels in another order, some of them twice."""
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(columns(), index=[(7 * n) % 20 for n in range(NUMBER)])


def numbered_frame() -> Any:
    """With whole numbers as names of the columns: ``df[0]`` is a column of all records."""
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(columns()).rename(columns={"x": 0, "y": 1})


def arrow(kind: str) -> Any:
    pyarrow = pytest.importorskip("pyarrow")
    return getattr(pyarrow, kind).from_pydict(columns())


def huggingface(form: str | None) -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict(columns()).with_format(form)


KINDS = {
    "a list of tuples": lambda: list(zip(X, Y, strict=True)),
    "a list of named tuples": lambda: [Named(x, y) for x, y in zip(X, Y, strict=True)],
    "a list of dictionaries": lambda: [{"x": float(x), "y": int(y)} for x, y in zip(X, Y, strict=True)],
    "a list of dataclasses": lambda: [Record(float(x), {"y": int(y)}) for x, y in zip(X, Y, strict=True)],
    "a dictionary by number": lambda: dict(enumerate(zip(X, Y, strict=True))),
    "datasets.Dataset": lambda: huggingface(None),
    "datasets.Dataset of tensors": lambda: huggingface("torch"),
    "a DataFrame": frame,
    "a DataFrame of numbered columns": numbered_frame,
    "an Arrow table": lambda: arrow("Table"),
    "an Arrow record batch": lambda: arrow("RecordBatch"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_record_is_one_sample(kind: str) -> None:
    assert drawn(KINDS[kind]()) == drawn(REFERENCE)


@pytest.mark.parametrize("kind", ["a list of dataclasses", "a DataFrame", "an Arrow table", "datasets.Dataset"])
def test_other_processes_read_them_too(kind: str) -> None:
    assert drawn(KINDS[kind](), workers=1) == drawn(REFERENCE)


def test_a_column_is_read_by_place() -> None:
    pandas = pytest.importorskip("pandas")
    series = pandas.Series(X.tolist(), index=range(NUMBER, 0, -1))
    found = [x for batch in gc.poisson_batches(series, PLAN, 4, key=KEY) for x in batch]
    expected = [x for batch in gc.poisson_batches(X, PLAN, 4, key=KEY) for x in batch]
    assert all(torch.equal(a.float(), b) for a, b in zip(found, expected, strict=True))


def test_dataclasses_come_out_as_one_and_train() -> None:
    records = KINDS["a list of dataclasses"]()
    model = nn.Linear(1, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = gc.attach(model, optimizer, "all-layer", PLAN)
    for batch in gc.poisson_batches(records, PLAN, 4):
        for piece in batch:
            assert type(piece) is Record and piece.name == ["someone"] * len(piece.x)
            engine.backward(F.cross_entropy(model(piece.x.float().unsqueeze(1)), piece.more["y"], reduction="none"))
        optimizer.step()
        optimizer.zero_grad()
    assert engine.ledger.steps_by_sampler == {"groupclip": 6, "user": 0}
    assert records[0] == Record(0.0, {"y": 0})  # the record itself stays
    engine.detach()


def test_shards_of_a_web_data_set(tmp_path: Path) -> None:
    """Files of one stem are a record; Hugging Face reads them into rows."""
    datasets = pytest.importorskip("datasets")
    with tarfile.open(tmp_path / "shard-0.tar", "w") as shard:
        for n in range(NUMBER):
            for ending, text in (("json", json.dumps({"x": float(X[n])})), ("cls", str(int(Y[n])))):
                info = tarfile.TarInfo(f"{n:06}.{ending}")
                info.size = len(text)
                shard.addfile(info, io.BytesIO(text.encode()))
    given = dict(data_files=[str(tmp_path / "shard-0.tar")], split="train", cache_dir=str(tmp_path / "cache"))
    found = datasets.load_dataset("webdataset", **given)
    rows = [{"x": row["json"]["x"], "y": int(row["cls"])} for row in found]
    assert drawn(rows) == drawn(REFERENCE)
    stream = datasets.load_dataset("webdataset", **given, streaming=True)
    with pytest.raises(TypeError, match=r"IterableDataset can't be Poisson-sampled.*streaming=False"):
        gc.poisson_batches(stream, PLAN)


def test_columns_of_one_name_are_refused() -> None:
    pandas = pytest.importorskip("pandas")
    twice = pandas.DataFrame([[1.0, 2.0]] * NUMBER, columns=["x", "x"])
    with pytest.raises(TypeError, match="two columns of one name"):
        gc.poisson_batches(twice, PLAN)


def weighted() -> DataLoader[Any]:
    return DataLoader(REFERENCE, batch_size=4, sampler=WeightedRandomSampler([1.0] * NUMBER, NUMBER))


@pytest.mark.parametrize(
    ("dataset", "error", "told"),
    [
        (lambda: "p" * NUMBER, TypeError, r"the data set is str, a path or a text.*ImageFolder\(path\)"),
        (lambda: Path("photos"), TypeError, "a path or a text.*webdataset"),
        (lambda: {"x": X, "y": Y}, TypeError, r"with the keys x, y.*TensorDataset\(\*columns\.values\(\)\)"),
        (lambda: {"train": REFERENCE}, TypeError, r"the keys train.*data\['train'\]"),
        (lambda: (x for x in X), TypeError, "generator can't be Poisson-sampled.*map-style"),
        (lambda: DataLoader(REFERENCE, shuffle=True), TypeError, "RandomSampler chooses its own batches.*loader.dataset"),
        (weighted, TypeError, "weigh the losses.*largest rate.*public records"),
    ],
)
def test_what_only_looks_like_records_is_refused_with_the_fix(dataset: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        gc.poisson_batches(dataset(), PLAN)


def test_a_dictionary_of_splits_of_hugging_face_is_refused() -> None:
    datasets = pytest.importorskip("datasets")
    with pytest.raises(TypeError, match=r"is a DatasetDict with the keys train"):
        gc.poisson_batches(datasets.DatasetDict(train=huggingface(None)), PLAN)
