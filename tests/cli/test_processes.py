"""``torchrun -m groupclip train``: the processes train one model, and the first one tells of it and writes."""

import json
import os
import subprocess
import sys

import pytest

from groupclip.cli import command as run

SMALL = [
    "train", "--task", "digits", "--model", "linear", "--clipping", "layer-wise", "--epsilon", "3", "--batch-size", "64",
    "--device", "cpu", "--steps", "4", "--eval-every", "2",
]  # fmt: skip


def torchrun(folder, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "groupclip"]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=500, env=environment, cwd=folder
    )


def test_two_processes_are_one_run(tmp_path):
    done = torchrun(tmp_path, *SMALL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("privacy        epsilon 3.00 at delta 1e-05, after 4 steps") == 1
    assert done.stderr.count("noise multiplier") == 1 and done.stderr.count("test accuracy") == 2
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["digits-1"]
    out = tmp_path / "runs" / "digits-1"
    assert sorted(p.name for p in out.iterdir()) == ["metrics.jsonl", "release", "report.html", "run.yaml"]
    assert json.loads((out / "release" / "privacy.json").read_text())["steps_taken"] == 4


def test_what_is_refused_is_refused_in_all(tmp_path):
    done = torchrun(tmp_path, "train", "--task", "digits", "--model", "linear", "--device", "cpu", "--no-privacy")
    assert done.returncode != 0 and "start it without torchrun" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("processes", ["2", "16"])
def test_processes_that_nobody_started_together_are_refused(tmp_path, capsys, monkeypatch, processes):
    monkeypatch.setenv("WORLD_SIZE", processes)
    assert run([*SMALL, "--out", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err
    assert f"one of {processes} processes" in told and "RANK" in told and "torchrun" in told
    assert not (tmp_path / "run").exists()
