"""Runs on folders of images: what is found before they begin, and when a file is no more what it was."""

import json
import multiprocessing

import pytest
from PIL import Image

from groupclip.cli.app import run as command_line
from groupclip.run import ConfigError, RunFailed, RunInterrupted, resume, start
from groupclip.tasks import imagefolder
from groupclip.tasks.telling import UnreadableImages
from small_runs import SELDOM, StopAfter, contents

STEPS = 4


@pytest.fixture
def folder(tmp_path):
    for part, count in (("train", 12), ("test", 2)):
        for place, name in enumerate(("cat", "dog")):
            (tmp_path / "pets" / part / name).mkdir(parents=True)
            for n in range(count):
                colour = (200 * place, 20 * n, 99 if part == "train" else 1)
                Image.new("RGB", (6, 6), colour).save(tmp_path / "pets" / part / name / f"{n}.png")
    return tmp_path / "pets"


def request(folder):
    return {
        "task": f"imagefolder:{folder}", "model": "linear", "clipping": "layer-wise", "epsilon": 3.0, "steps": STEPS,
        "batch_size": 12, "microbatch": 5, "task_options": {"image_size": 4}, "eval_every": 2, "device": "cpu",
    }  # fmt: skip


def test_a_run_whose_images_workers_decode(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(imagefolder, "HELD_BYTES", 0)
    outcome = start(request(folder), tmp_path / "run", workers=1).train()
    stated = json.loads((outcome.release / "privacy.json").read_text())
    assert stated["sampling_used"] == {"groupclip": STEPS, "user": 0}
    assert "workers" not in (outcome.out / "run.yaml").read_text()
    for child in multiprocessing.active_children():
        child.join(30)
    assert multiprocessing.active_children() == []


def test_bad_files_are_told_together_before_anything_is_written(folder, tmp_path):
    for name in ("cat/0.png", "dog/3.png"):
        (folder / "train" / name).write_bytes(b"rubbish")
    with pytest.raises(UnreadableImages, match=r"2 files can't be read as an image:\n.*cat/0\.png.*\n.*dog/3\.png"):
        start(request(folder), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("spoil", [lambda file: file.write_bytes(b"rubbish"), lambda file: file.unlink()], ids=["bad", "gone"])
def test_a_file_that_is_no_more_what_it_was_is_asked_for_and_not_sent_away(folder, tmp_path, spoil):
    with pytest.raises(RunInterrupted):
        start(request(folder), tmp_path / "run", checkpoint_seconds=SELDOM).train(StopAfter(1))
    file = folder / "train" / "cat" / "7.png"
    before, written = file.read_bytes(), contents(tmp_path / "run")
    spoil(file)
    with pytest.raises(ConfigError, match=r"(?i)put them back") as caught:
        resume(tmp_path / "run")
    assert "take" not in str(caught.value)
    assert contents(tmp_path / "run") == written
    file.write_bytes(before)
    assert resume(tmp_path / "run").train().steps == STEPS


def test_a_file_that_changes_in_a_run_can_be_put_back(folder, tmp_path, monkeypatch):
    """Each step draws every image, so that the changed one is met."""
    monkeypatch.setattr(imagefolder, "HELD_BYTES", 0)
    asked = {**request(folder), "batch_size": 24, "sampling": "full-batch"}
    run = start(asked, tmp_path / "run", checkpoint_seconds=SELDOM)
    file = folder / "train" / "dog" / "5.png"
    before = file.read_bytes()
    file.write_bytes((folder / "train" / "dog" / "6.png").read_bytes())
    with pytest.raises(RunFailed, match=r"step 1 failed: (?s:.)*dog/5\.png: it has changed\n.*put it back as it was"):
        run.train()
    file.write_bytes(before)
    outcome = resume(tmp_path / "run").train()
    assert (outcome.steps, outcome.updates) == (STEPS, STEPS - 1)  # the failed step stays charged


def test_what_was_left_out_is_told_and_written_nowhere(folder, tmp_path, capsys):
    hidden = folder / "train" / "cat" / ".ipynb_checkpoints"
    hidden.mkdir()
    Image.new("RGB", (6, 6)).save(hidden / "0-checkpoint.png")
    asked = request(folder)
    settings = ["--model", "linear", "--epsilon", "3", "--steps", "2", "--batch-size", "12", "--task-option", "image_size=4"]
    out = tmp_path / "run"
    assert command_line(["train", "--task", asked["task"], *settings, "--workers", "2", "--out", str(out)]) == 0
    told = "1 image file(s) left out: its name, or that of a folder it is in, begins with a dot"
    assert told in capsys.readouterr().err
    assert not any(word in content for content in contents(out).values() for word in (b"file(s)", b"checkpoint.png", b"ipynb"))
    assert command_line(["train", "--task", asked["task"], *settings, "--workers", "-1", "--out", str(out)]) == 2
