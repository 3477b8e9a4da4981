"""``groupclip reproduce``: the list, dry runs, runs that are stopped and go on, and refusals that say what to do."""

import json
import os
import signal

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset, default_collate

from groupclip.cli.app import run
from groupclip.paper import build as building
from groupclip.paper.catalogue import ORDER, catalogue
from groupclip.paper.source import Hub, Local
from groupclip.paper.workload import Workload

ROW = [
    "reproduce",
    "vision",
    "--model",
    "vit-small",
    "--data",
    "cifar10,svhn",
    "--epsilon",
    "2",
    "--clipping",
    "uniform:2",
]


@pytest.fixture
def doubles(monkeypatch):
    """Two linear layers in place of every model. Returns what was asked for, and a list of what to do in a step."""
    asked, hooks = [], []

    def build(data, model, *, source):
        asked.append((data, model, source))
        x = torch.randn(1500, 3)

        def losses(model, batch):
            for hook in hooks:
                hook(len(asked))
            return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

        return Workload(
            name=data, model=nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), train=TensorDataset(x, (x[:, 0] > 0).long()),
            collate=default_collate, losses=losses, evaluate=lambda model: {"accuracy": 90.0},
        )  # fmt: skip

    monkeypatch.setattr(building, "build", build)
    return asked, hooks


def test_the_list_names_every_row_and_figure_with_a_command(capsys):
    assert run(["reproduce", "--list"]) == 0
    told = capsys.readouterr().out
    lines = [line.strip() for line in told.splitlines()]
    for name in ORDER:
        table = catalogue()[name]
        assert f"{name}: {table.title} ({table.kind}, {table.label})" in lines
        for row in table.rows:
            assert (table.command(row) if row.clipping else f"not run: {row.why_not}") in lines
        assert all(command in lines for command in table.commands)
    assert run(["reproduce", "--list", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [e["name"] for e in facts["experiments"]] == list(ORDER) and "vision-small" in [
        e["name"] for e in facts["scaled"]
    ]


def test_runs_are_kept_and_skipped(doubles, tmp_path, capsys):
    asked, _ = doubles
    assert run([*ROW, "--out", str(tmp_path), "--json", "--microbatch", "7"]) == 0
    told = json.loads(capsys.readouterr().out)["results"]
    assert [r["cell"]["data"] for r in told] == ["cifar10", "svhn"] and {r["groups"] for r in told} == {2}
    assert all(r["privacy"]["steps"] == 8 and 1.98 <= r["privacy"]["epsilon"] <= 2 for r in told)
    assert all(
        r["settings"]["seed"] == 0 and r["settings"]["microbatch"] == 7 and r["environment"]["torch"] for r in told
    )
    assert asked == [("cifar10", "vit-small", Hub()), ("svhn", "vit-small", Hub())]
    assert run([*ROW, "--out", str(tmp_path), "--device", "cpu"]) == 0
    assert len(asked) == 2 and "done before" in capsys.readouterr().err


def test_a_run_that_is_interrupted_goes_on_after_the_finished_ones(doubles, tmp_path, capsys):
    asked, hooks = doubles
    hooks.append(lambda built: os.kill(os.getpid(), signal.SIGINT) if built == 2 else None)
    hooks.append(lambda built: hooks.clear() if built == 2 else None)
    assert run([*ROW, "--out", str(tmp_path)]) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert len(list((tmp_path / "paper").glob("*.json"))) == 1
    assert run([*ROW, "--out", str(tmp_path), "--quiet"]) == 0
    assert [data for data, _, _ in asked] == ["cifar10", "svhn", "svhn"]


def test_local_data(doubles, tmp_path):
    asked, _ = doubles
    assert run([*ROW, "--data", "svhn", "--out", str(tmp_path / "r"), "--data-folder", str(tmp_path), "--subset"]) == 0
    assert asked == [("svhn", "vit-small", Local(folder=tmp_path, subset=True))]


def test_a_dry_run(capsys):
    assert run([*ROW, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["dry_runs"]
    assert [(r["data"], r["groups"], r["steps"]) for r in told] == [("cifar10", 2, 250), ("svhn", 2, 366)]
    assert told[0]["noise_multiplier"] == pytest.approx(1.008, abs=0.002) and told[0]["sample_rate"] == 0.02


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vision", "--model", "vit-tiny"], "--model: vit-small, vit-large"),
        (["memory"], "trains nothing; its commands: groupclip plan"),
        (["vision", "--subset", "--model", "vit-small"], "give --data-folder"),
        (["vision", "--scale", "small"], "needs --data-folder"),
        (["e2e", "--scale", "small", "--dry-run", "--data-folder", "."], "--dry-run is for the full scale"),
        (["same-speed", "--scale", "small", "--data-folder", "."], "has no small twin"),
        (["nothing"], "No such command"),
    ],
)
def test_wrong_arguments(arguments, message, capsys):
    assert run(["reproduce", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_missing_download_says_how_to_get_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    arguments = ["--model", "vit-small", "--data", "cifar10", "--epsilon", "2", "--clipping", "uniform:4"]
    assert run(["reproduce", "vision", *arguments, "--out", str(tmp_path), "--data-folder", str(tmp_path)]) == 1
    assert "hf download" in capsys.readouterr().err
