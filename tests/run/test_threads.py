"""Threads: one for small models, more for large ones, and what a person asks for wins."""

import pytest
import torch

from groupclip.cli.app import run
from groupclip.models import build_model
from groupclip.run import start
from groupclip.run.config import checked_request
from groupclip.run.resolve import resolve
from groupclip.run.threads import VARIABLES, advised_threads, using
from groupclip.tasks import load_task
from groupclip.tasks.spec import Task

SMALL = ["--task", "digits", "--model", "linear", "--epsilon", "3", "--steps", "2", "--eval-every", "0"]


@pytest.mark.parametrize(
    ("name", "size", "threads"), [("linear", 8, 1), ("mlp", 28, 1), ("cnn-small", 8, 1), ("vit-tiny", 224, 4), ("cnn-small", 72, 2)]
)
def test_small_models_have_one_thread_and_large_ones_all(name, size, threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    records = load_task("digits")
    shape = (1, size, size)
    task = Task(
        name="mnist", kind="image", train=records.train, test=records.test, public=None, input_shape=shape, classes=("a", "b")
    )  # fmt: skip
    config = resolve(checked_request({"task": "mnist:x", "epsilon": 3, "model": name}), task)
    model = build_model(name, input_shape=shape, num_classes=2)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert advised_threads(config, task, model) == threads
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_as_many_as_are_asked_for_and_then_as_before():
    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="on the way"), using(before + 1):
        assert torch.get_num_threads() == before + 1
        raise ValueError("on the way")
    assert torch.get_num_threads() == before


@pytest.fixture
def told(monkeypatch, tmp_path, capsys):
    """Runs the command as on a machine with three threads; gives what it said, and the threads while it trained."""

    def command(*more, **environment):
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        seen, loading = [], []
        train = "groupclip.run.train.Run.train"
        monkeypatch.setattr("groupclip.run.start", lambda *a, **k: loading.append(torch.get_num_threads()) or start(*a, **k))
        from groupclip.run.train import Run

        plain = Run.train
        with monkeypatch.context() as patch, using(3):
            patch.setattr(train, lambda self, *a, **k: seen.append(torch.get_num_threads()) or plain(self, *a, **k))
            assert run(["train", *SMALL, *more, "--out", str(tmp_path / "run")]) == 0
            assert torch.get_num_threads() == 3
        assert loading == seen  # where data are read as well
        return capsys.readouterr().err, seen

    return command


def test_the_command_chooses_and_says_so(told):
    progress, seen = told()
    assert seen == [1]
    assert "1 of 3 threads: a micro-batch has too little work for more" in progress


@pytest.mark.parametrize(("more", "environment", "threads"), [(["--threads", "2"], {}, 2), ([], {"OMP_NUM_THREADS": "3"}, 3)])
def test_what_is_asked_for_wins(told, more, environment, threads):
    progress, seen = told(*more, **environment)
    assert seen == [threads]
    assert "too little work" not in progress


@pytest.mark.parametrize("option", ["--threads", "--workers"])
def test_a_mistyped_number_of_threads_or_processes_is_refused(option, tmp_path, capsys):
    """A million threads are the end of the process, without a word."""
    assert run(["train", *SMALL, option, "1000000", "--out", str(tmp_path / "run")]) == 2
    assert f"Invalid value for '{option}': 1000000 is not in the range" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
