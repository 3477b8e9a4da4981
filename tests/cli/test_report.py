"""``groupclip report``: one page of several runs, from what they publish and from made-up records."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from groupclip.cli.app import run
from groupclip.cli.compared import compared
from groupclip.memory import plan
from groupclip.models import build_model
from groupclip.run import start
from pages import figures
from small_runs import REQUEST, contents

MLP = {**REQUEST, "model": "mlp", "microbatch": 32}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    asked = {"one": "all-layer", "two": "planned:2", "a/layers": "layer-wise"}
    return [start({**MLP, "clipping": style}, root / name).train().out for name, style in asked.items()]


def test_the_page_holds_what_the_runs_published(runs, tmp_path, capsys):
    before = [contents(folder) for folder in runs]
    page = tmp_path / "page.html"
    assert run(["report", *map(str, runs), "--out", str(page), "--rounds", "2", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    html = page.read_text(encoding="utf-8")
    assert facts["page"] == str(page) and len(figures(html)) == 8
    for folder, row in zip(runs, facts["runs"], strict=True):
        record = json.loads((folder / "release" / "privacy.json").read_text())
        released = json.loads((folder / "release" / "config.json").read_text())
        assert (row["name"], row["epsilon"], row["groups"]) == (folder.name, record["epsilon"], len(record["groups"]))
        assert row["accuracy"] == released["evaluation"]["accuracy"] and row["seconds"] > 0
        assert f"<td>{row['accuracy']:.1%}</td>" in html and f"<h3>{folder.name}</h3>" in html
    assert [contents(folder) for folder in runs] == before
    assert str(tmp_path) not in html and str(runs[0].parent) not in html  # paths tell about a person's machine


def test_without_rounds_nothing_is_measured(runs, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert run(["report", str(runs[0]), "--out", str(page), "--rounds", "0"]) == 0
    assert capsys.readouterr().out == f"page           {page}\n"
    assert "time of a record" not in page.read_text(encoding="utf-8")


def test_memory_is_what_the_planner_predicts(runs):
    """Of a full micro-batch, with the state of the run's optimizer."""
    found = {each.name: each for each in compared(runs, 0)}
    model = build_model("mlp", input_shape=(1, 8, 8), num_classes=10, seed=0)
    batch = torch.empty(32, 1, 8, 8), torch.zeros(32, dtype=torch.int64)
    assert found["two"].settings["optimizer"] == "adamw"
    planned = plan(model, batch, groups=2, optimizer=torch.optim.AdamW(model.parameters()))
    assert found["two"].peak_bytes == planned.predicted_peak
    assert found["two"].partition.names == planned.partition.names


def test_noise_that_bands_keep_counts_as_memory(runs, tmp_path):
    banded = start({**MLP, "clipping": "planned:2", "bands": 2, "adjacency": "zero-out"}, tmp_path / "banded").train().out
    found = {each.name: each for each in compared([*runs, banded], 0)}
    numbers = sum(p.numel() for p in build_model("mlp", input_shape=(1, 8, 8), num_classes=10, seed=0).parameters())
    assert found["banded"].peak_bytes - found["two"].peak_bytes == 4 * numbers


def test_runs_of_one_name_are_numbered(runs, tmp_path):
    again = tmp_path / "one"
    again.symlink_to(runs[0])
    assert [r.name for r in compared([runs[0], again], 0)] == ["one (1)", "one (2)"]


def test_groups_of_another_run_are_refused(runs, tmp_path, capsys):
    mixed = Path(shutil.copytree(runs[0], tmp_path / "mixed"))
    text = (mixed / "run.yaml").read_text()
    (mixed / "run.yaml").write_text(text.replace("clipping: all-layer", "clipping: layer-wise"))
    assert run(["report", str(mixed), "--out", str(tmp_path / "page.html")]) == 2
    assert "release/privacy.json has others" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("command", "flag", "worker"),
    [
        (["report", "run", "--rounds", "0"], "--out", "groupclip.cli.compared.compared"),
        (["plan", "--model", "vit-micro", "--batch", "8", "--groups", "2"], "--plot", "groupclip.cli.memory.example_of"),
        (["plan", "--model", "vit-micro", "--batch", "8", "--groups", "2"], "--partition", "groupclip.cli.memory.example_of"),
        (["bound", "--groups", "1", "--steps", "10"], "--plot", "groupclip.theory.dp_sgd"),
    ],
)
def test_where_nothing_can_be_written_is_told_before_the_work(command, flag, worker, tmp_path, monkeypatch, capsys):
    def works(*_, **__):
        raise AssertionError("it was begun")

    monkeypatch.setattr(worker, works)
    (tmp_path / "folder.png").mkdir()
    for name, told in (("no/page.png", "there is no folder"), ("folder.png", "is a")):
        assert run([*command, flag, str(tmp_path / name)]) == 2
        assert told in " ".join(capsys.readouterr().err.split())
    with pytest.raises(AssertionError, match="it was begun"):  # the twin: to a file that can be, it works
        run([*command, flag, str(tmp_path / "page.png")])


def test_wrong_arguments_are_told_and_nothing_is_written(runs, tmp_path, capsys):
    assert run(["report", str(tmp_path / "none"), "--out", str(tmp_path / "page.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert run(["report", str(runs[0]), "--rounds", "0", "--out", str(tmp_path / "no" / "page.html")]) == 2
    assert "make it first" in capsys.readouterr().err
    assert run(["report", *[str(runs[0])] * 13, "--out", str(tmp_path / "page.html")]) == 2
    assert "12 can be told apart" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
