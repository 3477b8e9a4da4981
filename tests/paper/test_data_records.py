"""Records from a folder, as the hub's library stores them, and what is said when they aren't there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from groupclip.paper.build import PAIR_TOKENS, PIXELS, SENTENCE_TOKENS, build
from groupclip.paper.data.facts import DATASETS
from groupclip.paper.data.made import made_splits
from groupclip.paper.data.records import Columns, WrongData, splits
from groupclip.paper.printed import printed_settings
from groupclip.paper.scores import METRICS
from groupclip.paper.source import Hub, Local, MissingSource, StandIn
from twins import as_parquet, quiet_library, saved, stored

pytestmark = pytest.mark.usefixtures("quiet_library")
__all__ = ["quiet_library"]

FORMS = {
    "save_to_disk": saved,
    "the hub's parquet": lambda folder, dataset: as_parquet(folder, dataset, "plain/{split}-00000-of-00001.parquet"),
    "converted parquet": lambda folder, dataset: as_parquet(folder, dataset, "default/{split}/0000.parquet"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dataset", ["cifar100", "mnli", "e2e"])
def test_a_folder_gives_what_was_stored(form: str, dataset: str, tmp_path: Path) -> None:
    FORMS[form](tmp_path, dataset)
    facts = DATASETS[dataset]
    found = splits(dataset, Local(folder=tmp_path, subset=True))
    made = made_splits(facts, StandIn(records=5))
    assert list(found) == list(facts.sizes)
    for split in facts.sizes:
        rows, right = Columns(found[split], facts.columns), Columns(made[split], facts.columns)
        assert len(rows) == 5
        for row, expected in zip(rows, right, strict=True):
            pairs = list(zip(row, expected, strict=True))
            if facts.kind == "image":
                assert all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)
            else:
                assert row == expected


def test_a_folder_trains_as_the_stand_in_does(tmp_path: Path) -> None:
    """The same records by way of the library give the same batches."""
    saved(tmp_path, "sst2", records=6)
    workload = build("sst2", "roberta-base", source=StandIn(records=6), length=32)
    found = splits("sst2", Local(folder=tmp_path, subset=True))
    rows = Columns(found["train"], DATASETS["sst2"].columns)
    assert [((text,), label) for text, label in rows] == [workload.train[i] for i in range(6)]


def test_sizes_other_than_published_are_refused_unless_a_subset_was_said(tmp_path: Path) -> None:
    saved(tmp_path, "qnli")
    with pytest.raises(WrongData, match=r"'train' holds 5 records, the published data set 104,743.*--subset"):
        splits("qnli", Local(folder=tmp_path))
    assert len(splits("qnli", Local(folder=tmp_path, subset=True))["train"]) == 5


def test_published_sizes_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, "qnli")
    monkeypatch.setitem(DATASETS["qnli"].sizes, "train", 5)  # type: ignore[arg-type]
    monkeypatch.setitem(DATASETS["qnli"].sizes, "validation", 5)  # type: ignore[arg-type]
    assert len(splits("qnli", Local(folder=tmp_path))["train"]) == 5


def test_other_columns_and_missing_splits_are_refused(tmp_path: Path) -> None:
    twin = stored("sst2")
    renamed = datasets.DatasetDict({name: rows.rename_column("sentence", "text") for name, rows in twin.items()})
    renamed.save_to_disk(str(tmp_path / "a" / "data" / "sst2"))
    with pytest.raises(WrongData, match=r"no column sentence, only .*text"):
        splits("sst2", Local(folder=tmp_path / "a", subset=True))
    datasets.DatasetDict({"train": twin["train"]}).save_to_disk(str(tmp_path / "b" / "data" / "sst2"))
    with pytest.raises(WrongData, match="no split 'validation', only train"):
        splits("sst2", Local(folder=tmp_path / "b", subset=True))


def test_empty_splits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: {"train": [], "validation": []})
    with pytest.raises(WrongData, match="split 'train' holds no record"):
        splits("sst2", Hub())


def test_an_empty_place_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(MissingSource, match=r"no folder .*gtsrb.*save_to_disk.*huggingface.co/datasets/tanganke/gtsrb"):
        splits("gtsrb", Local(folder=tmp_path))
    (tmp_path / "data" / "gtsrb").mkdir(parents=True)
    with pytest.raises(MissingSource, match=r"neither dataset_dict.json .* nor parquet .*train-00000-of-00001.parquet"):
        splits("gtsrb", Local(folder=tmp_path))


@pytest.mark.parametrize(("dataset", "command"), [
    ("mnli", r"load_dataset\('nyu-mll/glue', 'mnli'\)\.save_to_disk\('FOLDER/data/mnli'\)"),
    ("e2e", r"load_dataset\('tuetschek/e2e_nlg', revision='refs/convert/parquet'\)\.save_to_disk\('FOLDER/data/e2e'\)"),
])  # fmt: skip
def test_a_hub_that_cannot_be_reached_says_how_to_bring_the_data(
    dataset: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def no_hub(*arguments: Any, **more: Any) -> None:
        asked.append((arguments, more))
        raise ConnectionError("Couldn't reach it\nin any way")

    monkeypatch.setattr(datasets, "load_dataset", no_hub)
    with pytest.raises(MissingSource, match=rf"ConnectionError: Couldn't reach it\).*{command}.*--data-folder FOLDER"):
        splits(dataset, Hub())
    facts = DATASETS[dataset]
    assert asked == [((facts.hub, facts.config), {"revision": facts.revision})]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(MissingSource, match="HF_HUB_OFFLINE is set"):
        splits(dataset, Hub())


def test_the_hub_gives_the_splits_that_are_needed_and_their_sizes_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: stored("svhn"))
    with pytest.raises(WrongData, match="published data set 73,257"):
        splits("svhn", Hub())


def test_a_missing_package_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str, *_: Any) -> Any:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    (tmp_path / "data" / "sst2").mkdir(parents=True)
    monkeypatch.setattr("importlib.import_module", without)
    for source in (Hub(), Local(folder=tmp_path)):
        with pytest.raises(
            MissingSource, match=r"'sst2' needs the package 'datasets'.*pip install 'groupclip\[reproduce\]'"
        ):
            splits("sst2", source)


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, groupclip.paper.build\n"
        "print([m for m in ('datasets', 'transformers', 'sacrebleu', 'PIL') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_sizes_lengths_and_scores_are_those_of_the_printed_settings() -> None:
    settings = printed_settings()
    features = {"image": PIXELS, "sentences": SENTENCE_TOKENS, "table-to-text": PAIR_TOKENS}
    for name, facts in DATASETS.items():
        of = settings.of(name)
        assert (of.records, of.feature) == (facts.sizes[facts.train], features[facts.kind])
        names = [score.name for score in of.scores]
        assert sorted(names) == sorted(METRICS if facts.kind == "table-to-text" else facts.tests)
