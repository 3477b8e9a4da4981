"""The table of best known results: its rows run on made data, go on where they were, and the page says what was run."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from benchmark import benchmark
from groupclip.cli.app import run as command_line
from groupclip.paper.records import features as made
from groupclip.paper.records.build import jobs
from groupclip.paper.records.efficientnet import FILE, efficientnet, network
from groupclip.paper.records.page import page
from groupclip.paper.records.rows import ROWS, Row, named
from groupclip.paper.results import load_all
from groupclip.paper.runner import run_jobs
from groupclip.paper.scaled.vision_data import read
from groupclip.paper.scaled.vision_made import write_made
from groupclip.paper.source import MissingSource
from groupclip.tasks.scattering import scattered


class Watching:
    """Notes what happens."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def skipped(self, job, result) -> None:
        self.seen.append("skipped")

    def begin(self, job, number, of) -> None:
        self.seen.append("begin")

    def step(self, step, steps) -> None:
        pass

    def done(self, job, result) -> None:
        pass


@pytest.fixture(autouse=True)
def _fresh():
    yield
    read.cache_clear()


@pytest.fixture
def data(tmp_path):
    write_made(tmp_path / "data" / "cifar10.npz", classes=4, train=300, test=80, seed=2)
    return tmp_path / "data"


def small() -> Row:
    row = named(("cifar10",))[0]
    settings = dataclasses.replace(row.settings, batch_size=60, steps=6, epsilon=8.0, microbatch=40)
    return dataclasses.replace(row, epsilon=8.0, settings=settings)


def test_a_row_runs_and_goes_on(data, tmp_path):
    watcher = Watching()
    first = run_jobs(jobs([small()], range(1), data, tmp_path / "out"), tmp_path / "out", watcher)
    assert 0 <= first[0].metrics["accuracy"] <= 100
    assert first[0].privacy["sampling"] == "groupclip" and first[0].privacy["epsilon"] <= 8.0
    assert first[0].settings["workload"]["inputs"] == 243 * 64
    again = run_jobs(jobs([small()], range(2), data, tmp_path / "out"), tmp_path / "out", watcher)
    assert again[0] == first[0] and watcher.seen == ["begin", "skipped", "begin"]
    plain = run_jobs(jobs([small()], range(1), data, tmp_path / "out", private=False), tmp_path / "out", watcher)
    assert plain[0].privacy == {} and plain[0].metrics["accuracy"] > 50  # four colours
    assert len(load_all(tmp_path / "out", "records")) == 3
    told = page([dataclasses.replace(r, cell={**r.cell, "epsilon": r.cell["epsilon"] and 3.0}) for r in [*again, *plain]])
    (line,) = [line for line in told.splitlines() if "--row cifar10`" in line]
    scores = [r.metrics["accuracy"] for r in again]
    assert f"{sum(scores) / 2:.2f} ±" in line and "(2 runs)" in line and "(1 run)" in line
    assert "best known: Tramèr and Boneh 2021" in told


def test_features_are_kept_and_are_the_images_own(data, tmp_path, monkeypatch):
    train, test = made.features("scattering", data / "cifar10.npz", tmp_path / "kept")
    pixels = read(data / "cifar10.npz")[0].pixels
    rows, labels = train.batch([7, 3])
    expected = scattered((pixels[[7, 3]].float() - 127.5) / 127.5).flatten(1).to(torch.float16).float()
    assert torch.equal(rows, expected) and labels.tolist() == train.labels[[7, 3]].tolist()
    assert (len(train), len(test), train.classes) == (300, 80, 4)
    monkeypatch.setattr(made, "scattered", None)  # they aren't made a second time
    again, _ = made.features("scattering", data / "cifar10.npz", tmp_path / "kept")
    assert np.array_equal(again.values, train.values)
    write_made(data / "cifar10.npz", classes=4, train=30, test=8, seed=5)
    read.cache_clear()
    with pytest.raises(TypeError):  # other data have other features
        made.features("scattering", data / "cifar10.npz", tmp_path / "kept")


def test_grey_images_are_taken_without_their_margin(tmp_path):
    grey = np.random.default_rng(0).integers(0, 256, (40, 28, 28)).astype(np.uint8)
    labels = np.arange(40) % 4
    file = tmp_path / "fashion_mnist.npz"
    np.savez(file, train_x=grey, train_y=labels, test_x=grey[:8], test_y=labels[:8], classes=np.array(list("abcd")))
    train, _ = made.features("scattering", file, tmp_path / "kept")
    x = (torch.from_numpy(grey[:2]).float().unsqueeze(1) - 127.5) / 127.5
    assert torch.equal(train.batch([0, 1])[0], scattered(x).flatten(1).to(torch.float16).float())


def test_the_encoder_s_network_has_its_weights_shapes():
    model = network()
    assert sum(p.numel() for p in model.parameters()) == 4_652_008
    with torch.no_grad():
        assert model.eval()(torch.zeros(2, 3, 33, 32)).shape == (2, 1000)


def test_the_encoder_reads_its_weights_and_nothing_else(tmp_path):
    with pytest.raises(MissingSource, match=r"python benchmarks/encoder_weights\.py"):
        efficientnet(tmp_path)
    torch.manual_seed(0)
    whole = network()
    save_file(whole.state_dict(), tmp_path / FILE)
    x = torch.randn(2, 3, 40, 40)
    with torch.no_grad():
        assert torch.equal(whole.eval()[-1](efficientnet(tmp_path)(x)), whole(x))
    save_file({"a": torch.zeros(3)}, tmp_path / FILE)
    with pytest.raises(MissingSource, match="isn't EfficientNet-Lite0"):
        efficientnet(tmp_path)


def test_rows_are_what_they_say():
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert (row.best is None) == (not row.source)
        if row.settings is not None:
            assert row.features in made.MAKERS
            assert (row.settings.epsilon, row.settings.delta) == (row.epsilon, row.delta)
    with pytest.raises(ValueError, match="there is no row 'imagenet'; rows: mnist"):
        named(("imagenet",))


def test_what_was_not_run_is_said():
    told = page([])
    assert told.count("not run: it needs a GPU") == 2 * sum(row.settings is None for row in ROWS)
    assert [cell.strip() for cell in told.split("|")].count("not run") == 2 * sum(row.settings is not None for row in ROWS)


def test_the_page_is_made_of_its_results():
    module = benchmark("records_page")
    assert (module.DOCS / "records.md").read_text(encoding="utf-8") == module.written(module.DOCS)


def test_the_command(capsys, tmp_path, data):
    assert command_line(["reproduce", "records", "--list", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["rows"]] == [row.name for row in ROWS]
    assert command_line(["reproduce", "records", "--list"]) == 0
    assert "fashion-mnist: Fashion-MNIST, scattering" in capsys.readouterr().out
    assert command_line(["reproduce", "records", "--row", "x", "--data-folder", str(data)]) == 2
    assert command_line(["reproduce", "records", "--row", "cifar10"]) == 2
    assert "give --data-folder" in capsys.readouterr().err
    assert command_line(["reproduce", "records", "--row", "cifar10-wrn", "--data-folder", str(data)]) == 2
    assert "needs a GPU" in capsys.readouterr().err
    out = ["--data-folder", str(data), "--out", str(tmp_path / "out")]
    assert command_line(["reproduce", "records", "--row", "fashion-mnist", *out]) in (1, 2)
    assert "fashion_mnist.npz (the data)" in capsys.readouterr().err
