"""``groupclip plan``: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import groupclip as gc
from groupclip.cli.app import run

SMALL = ["plan", "--model", "vit-micro", "--batch", "8"]


def test_json_partition_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure, out = tmp_path / "plan.png", tmp_path / "groups.json"
    assert run([*SMALL, "--groups", "2", "--json", "--plot", str(figure), "--partition", str(out)]) == 0
    facts = json.loads(capsys.readouterr().out)
    groups = gc.Partition.from_json(out.read_text())
    assert [g["name"] for g in facts["groups"]] == list(groups)
    assert len(groups) <= 2
    assert facts["predicted_peak_bytes"] > facts["static_bytes"] > 0
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_several_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--groups", "2", "--ranks", "2", "--microbatches", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["on_ranks"]
    assert (told["ranks"], told["microbatches"]) == (2, 3)
    assert told["fully_shard"]["weights_bytes"] < told["DistributedDataParallel"]["weights_bytes"]
    assert run(["plan", "--model", "vit-micro", "--memory", "20MB", "--ranks", "2"]) == 0
    assert "on 2 processes" in capsys.readouterr().out


def test_the_largest_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--model", "vit-micro", "--memory", "20MB"]) == 0
    assert "of 20.00 MB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*SMALL, "--memory", "1MB"], "the least is"),
        ([*SMALL, "--memory", "much"], "can't be read"),
        (SMALL, "give --groups, --memory, or both"),
        ([*SMALL, "--groups", "2", "--plot", "plan.pdf"], "saved as .png or .svg"),
        ([*SMALL, "--groups", "2", "--tokens", "5"], "--tokens 5 means nothing"),
        ([*SMALL, "--groups", "2", "--microbatches", "3"], "--microbatches 3 is for what several processes send in a step"),
        (["plan", "--model", "nothing", "--batch", "8", "--groups", "2"], "unknown model"),
        (["plan", "--model", "vit-micro", "--groups", "2"], "give --batch"),
    ],
)
def test_wrong_arguments_end_with_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert message in capsys.readouterr().err
