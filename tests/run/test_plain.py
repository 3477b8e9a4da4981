"""Runs without privacy: they train plainly, and say NOT PRIVATE wherever they show."""

import json

import pytest
import torch
import yaml
from safetensors import safe_open

from groupclip.cli.app import run as command
from groupclip.run import ConfigError, RunFailed, RunInterrupted, resume, start, start_plain
from groupclip.run.config import PRIVATE, checked_request
from small_runs import REQUEST, StopAfter, contents

PLAIN = {"task": "digits", "model": "linear", "no_privacy": True, "epochs": 3, "device": "cpu"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return start_plain(PLAIN, tmp_path_factory.mktemp("plain") / "run").train()


def test_it_learns_as_without_privacy(finished):
    assert finished.test_accuracy > 0.85  # the linear model with epsilon 3 and its recipe has 0.86 to 0.89 after far more epochs
    assert not finished.private


def test_every_place_is_marked(finished):
    names = {path.name for path in finished.out.iterdir()}
    assert names == {"NOT-PRIVATE.txt", "not-private", "report.html", "metrics.jsonl", "run.yaml"}  # and no release
    assert {path.name for path in finished.weights.iterdir()} == {"model.safetensors", "privacy.json", "README.md", "config.json"}
    for path in (finished.out / "NOT-PRIVATE.txt", finished.report, finished.out / "run.yaml", finished.weights / "README.md"):
        assert "NOT PRIVATE" in path.read_text(), path
    assert "differential-privacy" not in (finished.weights / "README.md").read_text()
    record = json.loads((finished.weights / "privacy.json").read_text())
    assert (record["private"], record["epsilon"], record["delta"]) == (False, None, None)
    assert record["statement"].startswith("NOT PRIVATE")
    assert json.loads((finished.weights / "config.json").read_text())["private"] is False
    with safe_open(finished.weights / "model.safetensors", framework="pt") as file:
        assert file.metadata()["privacy"] == "NOT PRIVATE"
    rows = [json.loads(line) for line in (finished.out / "metrics.jsonl").read_text().splitlines()]
    assert all(row["private"] is False and "epsilon" not in row for row in rows)


def test_its_settings_do_it_again(finished, tmp_path):
    settings = yaml.safe_load((finished.out / "run.yaml").read_text())
    assert settings["no_privacy"] is True
    assert not set(PRIVATE) & set(settings)
    again = start_plain(settings, tmp_path / "again").train()
    assert again.test_accuracy == finished.test_accuracy  # the seed decides all


def test_nothing_private_is_overwritten_and_none_is_gone_on_with(tmp_path):
    private = start({**REQUEST, "steps": 1}, tmp_path / "run").train()
    before = contents(private.out)
    with pytest.raises(ConfigError, match="isn't empty"):
        start_plain(PLAIN, private.out)
    with pytest.raises(RunInterrupted):
        start(REQUEST, tmp_path / "half").train(StopAfter(3))
    with pytest.raises(ConfigError, match="no_privacy"):
        resume(tmp_path / "half", {"no_privacy": True})
    assert contents(private.out) == before


def test_it_stops_when_asked_and_is_not_resumed(tmp_path):
    run = start_plain(PLAIN, tmp_path / "run")
    with pytest.raises(RunInterrupted, match="a run without privacy can't go on"):
        run.train(StopAfter(2))
    with pytest.raises(RunFailed, match="was trained already"):
        run.train()
    with pytest.raises(ConfigError, match="one without privacy, which can't go on"):
        resume(tmp_path / "run")
    assert {path.name for path in run.folder.root.iterdir()} == {"NOT-PRIVATE.txt", "metrics.jsonl", "run.yaml"}


@pytest.mark.parametrize("key", ["epsilon", "delta", "sampling", "adaptive"])
def test_settings_of_privacy_mean_nothing_to_it(key):
    value = {"epsilon": 3, "delta": 1e-5, "sampling": "poisson", "adaptive": {"quantile": 0.5}}[key]
    with pytest.raises(ConfigError, match=f"no_privacy=true is given, and {key}=.* means nothing"):
        checked_request({**PLAIN, key: value})


@pytest.mark.parametrize("infinite", [float("inf"), "inf"])
def test_an_infinite_epsilon_is_told_of_it(infinite):
    with pytest.raises(ConfigError, match="epsilon=inf must be > 0 and finite: for a baseline without privacy give --no-privacy"):
        checked_request({"task": "digits", "epsilon": infinite})


def test_it_is_not_begun_as_a_private_run(tmp_path):
    with pytest.raises(ConfigError, match="start_plain"):
        start(PLAIN, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_micro_batches_are_the_batch(tmp_path):
    weights = []
    for microbatch in (64, 17):
        run = start_plain({**PLAIN, "epochs": 0.2, "optimizer": "sgd", "microbatch": microbatch}, tmp_path / str(microbatch))
        run.train()
        weights.append(run.model.head.weight.detach())
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-7)


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command(["train", "--task", "digits", "--model", "linear", "--epsilon", "3", "--steps", "1", "--quiet"]) == 0
    told = capsys.readouterr().out
    assert "baseline       not measured" in told
    again = "groupclip train --config runs/digits-1/run.yaml --no-privacy"
    assert again in told
    assert command([*again.split()[1:], "--epochs", "1"]) == 0
    told, progress = capsys.readouterr()
    assert "privacy        NONE: NOT PRIVATE" in told
    assert progress.count("NOT PRIVATE") > 2
    assert (tmp_path / "runs" / "digits-not-private-1" / "not-private" / "model.safetensors").is_file()
    assert command(["train", "--task", "digits", "--epsilon", "inf"]) == 2
    assert "--no-privacy" in capsys.readouterr().err
    assert command(["train", "--task", "digits", "--epsilon", "3", "--no-privacy"]) == 2
    assert "--no-privacy is given, and --epsilon=3.0 means nothing without privacy" in " ".join(capsys.readouterr().err.split())
