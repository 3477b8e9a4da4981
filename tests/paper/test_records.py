"""The table of best known results: its rows run on made data, go on where they were, and the page says what was run."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import groupclip as gc
from benchmark import benchmark
from groupclip.cli.app import run as command_line
from groupclip.paper.records import features as made
from groupclip.paper.records import scratch
from groupclip.paper.records.build import jobs
from groupclip.paper.records.efficientnet import FILE, efficientnet, network
from groupclip.paper.records.page import page
from groupclip.paper.records.rows import ROWS, Row, named
from groupclip.paper.records.wideresnet import WideResNet
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


def test_the_first_records_alone_are_trained_on(data, tmp_path):
    whole, test = made.features("scattering", data / "cifar10.npz", tmp_path / "kept")
    few, same = made.features("scattering", data / "cifar10.npz", tmp_path / "kept", first=37)
    assert len(few) == 37 and len(same) == len(test) == 80 and len(whole) == 300
    assert np.array_equal(few.values, whole.values[:37]) and torch.equal(few.labels, whole.labels[:37])
    row = dataclasses.replace(small(), first=120)
    (result,) = run_jobs(jobs([row], range(1), data, tmp_path / "out"), tmp_path / "out", Watching())
    assert result.settings["workload"]["records"] == 120 and result.privacy["sample_rate"] == 60 / 120


def test_features_under_way_go_on_where_they_were(tmp_path):
    asked: list[range] = []
    orders = {"stop"}

    def make(rows: range) -> torch.Tensor:
        if len(asked) == 2 and "stop" in orders:
            raise KeyboardInterrupt
        asked.append(rows)
        return torch.arange(rows.start, rows.stop).view(-1, 1, 1) * torch.ones(1, 2, 3)

    path = tmp_path / "features.npy"
    with pytest.raises(KeyboardInterrupt):
        made._write(path, make, 11, 3)
    assert not path.exists() and asked == [range(3), range(3, 6)]
    orders.clear()
    made._write(path, make, 11, 3)
    assert asked == [range(3), range(3, 6), range(6, 9), range(9, 11)]  # none was made twice
    assert np.array_equal(np.load(path), np.arange(11, dtype=np.float16)[:, None].repeat(6, 1))
    assert list(tmp_path.iterdir()) == [path]


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


def test_the_wide_network_is_that_of_its_name():
    model = WideResNet(10)
    weights = [p for n, p in model.named_parameters() if n.endswith("weight") and p.dim() == 4]
    assert len(weights) == 12 + 1 + 3  # 16 - 4 in blocks, the first, and the ways around
    assert 2_700_000 < sum(p.numel() for p in model.parameters()) < 2_800_000
    filters = model.layers[0]
    with torch.no_grad():
        impulse = torch.zeros(27, 3, 3, 3)
        impulse.view(27, 27).fill_diagonal_(1.0)
        acting = (filters(F.pad(impulse, (1, 1, 1, 1)))[:, :, 2, 2] - filters.bias).T
    assert torch.allclose(acting.mean(1), torch.zeros(16), atol=1e-6)
    assert torch.allclose(acting.square().sum(1), torch.ones(16), atol=1e-4)


def test_a_network_from_scratch_trains_on_views_whose_mean_is_clipped(data, tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "WideResNet", lambda classes: WideResNet(classes, depth=10, widen=1))
    row = named(("cifar10-wrn",))[0]
    settings = dataclasses.replace(row.settings, batch_size=20, steps=2, microbatch=8, views=2)
    row = dataclasses.replace(row, settings=settings)
    results = run_jobs(jobs([row], range(1), data, tmp_path / "out"), tmp_path / "out", Watching())
    assert results[0].settings["views"] == 2 and results[0].privacy["epsilon"] <= 8.0
    assert results[0].privacy["sampling"] == "groupclip" and 0 <= results[0].metrics["accuracy"] <= 100
    plain = run_jobs(jobs([row], range(1), data, tmp_path / "out", private=False), tmp_path / "out", Watching())
    assert plain[0].privacy == {}
    workload = scratch.from_scratch(row, data / "cifar10.npz", 0, 2)
    monkeypatch.setattr(scratch, "augmented", lambda images, views, **_: torch.stack([images, 2 * images], 1))
    images, labels = workload.collate([3, 4, 5])
    engine = gc.attach(workload.model, None, "all-layer", None, clip="abadi", thresholds=1e-3, views=2)
    engine.backward(workload.losses(workload.model, (images, labels)))
    got = {name: param.grad.clone() for name, param in workload.model.named_parameters()}
    engine.detach()
    want = {name: torch.zeros_like(grad) for name, grad in got.items()}
    for image, label in zip(images, labels, strict=True):  # one after the other, without an engine
        outputs = workload.model(torch.stack([image, 2 * image]))
        F.cross_entropy(outputs, label.expand(2)).backward()
        norm = torch.stack([p.grad.norm() for p in workload.model.parameters()]).norm()
        for name, param in workload.model.named_parameters():
            want[name] += param.grad * (1e-3 / norm)
        workload.model.zero_grad()
    for name, grad in got.items():
        assert torch.allclose(grad, want[name], rtol=1e-3, atol=1e-7), name


def test_rows_for_a_gpu_are_complete(capsys):
    assert command_line(["reproduce", "records", "--dry-run", "--json"]) == 0
    plain, found = json.loads(capsys.readouterr().out)["dry_runs"]
    assert plain["row"] == "cifar10-tempered" and plain["views"] == 1 and 500_000 < plain["parameters"] < 650_000
    assert found["row"] == "cifar10-wrn" and found["views"] == 16 and found["steps"] == 2500
    assert found["sample_rate"] == 4096 / 50_000 and 2.5 < found["noise_multiplier"] < 3.5  # De et al. have 3
    assert command_line(["reproduce", "records", "--row", "mnist", "--dry-run"]) == 2
    assert "runs on two cores" in capsys.readouterr().err


def test_a_network_with_a_part_that_does_not_train_is_told(monkeypatch):
    class Idle(WideResNet):
        def __init__(self, classes: int) -> None:
            super().__init__(classes, depth=10, widen=1)
            self.idle = torch.nn.Linear(2, 2)

    monkeypatch.setattr(scratch, "WideResNet", Idle)
    with pytest.raises(RuntimeError, match=r"no gradient for idle\.weight, idle\.bias"):
        scratch.dry_run(named(("cifar10-wrn",))[0])


def test_rows_are_what_they_say():
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert (row.best is None) == (not row.source)
        assert row.gpu == (row.features not in made.MAKERS) == bool(row.records)
        assert (row.settings.epsilon, row.settings.delta) == (row.epsilon, row.delta)
    with pytest.raises(ValueError, match="there is no row 'imagenet'; rows: mnist"):
        named(("imagenet",))


def test_what_was_not_run_is_said():
    told = page([])
    assert told.count("not run: it needs a GPU") == 2 * sum(row.gpu for row in ROWS)
    assert [cell.strip() for cell in told.split("|")].count("not run") == 2 * sum(not row.gpu for row in ROWS)


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
