"""``groupclip train`` as a person meets it: output, exit codes, signals."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import yaml
from rich.console import Console

from groupclip.cli.app import run
from groupclip.cli.progress import Terminal
from groupclip.cli.signals import StopOnSignal
from groupclip.cli.train import train
from groupclip.run import CHECKPOINT_SECONDS, Beginning, resume, start
from groupclip.run.config import KEYS

SMALL = ["--task", "digits", "--model", "linear", "--clipping", "layer-wise", "--epsilon", "3", "--batch-size", "64"]
SLOW = [*SMALL[:-1], "512", "--steps", "12", "--microbatch", "1", "--eval-every", "0"]  # about a second a step


def test_the_result_is_told(tmp_path, capsys):
    out = tmp_path / "run"
    assert run(["train", *SMALL, "--steps", "6", "--out", str(out)]) == 0
    told, progress = capsys.readouterr()
    assert re.search(r"test accuracy +\d+\.\d% on held-out records", told)
    assert re.search(r"privacy +epsilon 3\.00 at delta 1e-05, after 6 steps", told)
    assert str(out / "release") in told
    assert str(out / "report.html") in told
    assert "1 group (layer-wise), 6 steps of 64 samples on average" in progress
    assert progress.count("test accuracy") == 6
    assert "public loss" in progress


def test_sampling_noise_and_thresholds_are_options(tmp_path, capsys):
    out = tmp_path / "run"
    kind = ["--sampling", "truncated-poisson", "--adjacency", "zero-out", "--accountant", "pld", "--hardened"]
    kind += ["--allocation", "threshold", "--adaptive", "quantile=0.6,share=0.02", "--thresholds", "2"]
    assert run(["train", *SMALL, *kind, "--steps", "3", "--out", str(out)]) == 0
    stated = json.loads((out / "release" / "privacy.json").read_text())
    assert (stated["sampling_assumed"], stated["adjacency"]) == ("truncated Poisson", "zero-out")
    assert stated["hardened_against_floating_point_attacks"]
    assert len(stated["other_releases"]) == 1
    settings = yaml.safe_load((out / "run.yaml").read_text())
    assert settings["adaptive"] == {"quantile": 0.6, "share": 0.02}
    assert settings["accountant"] == "PLD"
    capsys.readouterr()
    # the file that the run wrote does it again
    assert run(["train", "--config", str(out / "run.yaml"), "--out", str(tmp_path / "again"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == stated["epsilon"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sampling", "without-replacement"], "use --adjacency='replace-one'"),
        (["--adaptive", "much"], "--adaptive 'much' can't be read"),
        (["--adaptive", "quantile=2"], "quantile=2.0 must be in (0, 1)"),
        (["--sampling", "shuffled"], "'shuffled' is not one of"),
    ],
)
def test_kinds_that_can_not_be_are_wrong_arguments(tmp_path, capsys, options, message):
    assert run(["train", *SMALL, *options, "--steps", "2", "--out", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_json_is_one_object_and_nothing_else(tmp_path, capfd):
    out = tmp_path / "run"
    assert run(["train", *SMALL, "--steps", "2", "--out", str(out), "--json"]) == 0
    told, progress = capfd.readouterr()
    facts = json.loads(told)
    assert facts["steps"] == facts["updates"] == 2
    assert facts["release"] == str(out / "release")
    assert 2.97 <= facts["epsilon"] <= 3
    assert progress == ""


def test_quiet_shows_no_progress(tmp_path, capfd):
    assert run(["train", *SMALL, "--steps", "2", "--out", str(tmp_path / "run"), "--quiet"]) == 0
    told, progress = capfd.readouterr()
    assert "test accuracy" in told
    assert progress == ""


def test_settings_come_from_a_file_and_the_command_line_wins(tmp_path, capsys):
    first, second = tmp_path / "first", tmp_path / "second"
    assert run(["train", *SMALL, "--epochs", "0.2", "--out", str(first), "--quiet"]) == 0
    settings = (first / "run.yaml").read_text()
    assert "steps: 5" in settings
    assert run(["train", "--config", str(first / "run.yaml"), "--steps", "3", "--out", str(second), "--quiet"]) == 0
    assert (second / "run.yaml").read_text() == settings.replace("steps: 5", "steps: 3")


def test_without_out_every_run_gets_a_folder_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        assert run(["train", *SMALL, "--steps", "1", "--quiet"]) == 0
        assert f"runs/digits-{number}/release" in capsys.readouterr().out
    assert run(["train", "--config", "runs/digits-1/run.yaml", "--quiet"]) == 0
    assert (tmp_path / "runs" / "digits-3" / "release").is_dir()


def test_thresholds_and_options_are_read(tmp_path):
    out = tmp_path / "run"
    arguments = [
        "train", "--task", "digits", "--model", "mlp", "--clipping", "layer-wise", "--epsilon", "3", "--steps", "1",
        "--thresholds", "layers.0=0.5,layers.2=0.25,layers.4=1", "--clip", "abadi", "--out", str(out), "--quiet",
    ]  # fmt: skip
    assert run(arguments) == 0
    groups = json.loads((out / "release" / "privacy.json").read_text())["groups"]
    assert [group["threshold"] for group in groups] == [0.5, 0.25, 1.0]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--out", ""], "isn't empty"),
        (["--out", "new", "--clipping", "unifrom:2"], "unknown clipping style 'unifrom:2'"),
        (["--out", "new", "--task", "digit"], "unknown task 'digit'; did you mean 'digits'?"),
        (["--out", "new", "--task", "csv:missing.csv"], "there is no file"),
        (["--out", "new", "--task", "mnist:missing"], "there is nothing at"),
        (["--out", "new", "--model", "vit-tinny"], "did you mean vit-tiny"),
        (["--out", "new", "--clip", "abbadi"], "abbadi"),
        (["--out", "new", "--epsilon", "-1"], "epsilon=-1 must be > 0"),
        (["--out", "new", "--epsilon", "three"], "'three' is not a valid float"),
        (["--out", "new", "--batch-size", "100000"], "larger than the 1437 training samples"),
        (["--out", "new", "--thresholds", "1,2,3"], "3 numbers for 1 groups"),
        (["--out", "new", "--thresholds", "a lot"], "--thresholds 'a lot' can't be read"),
        (["--out", "new", "--task-option", "image_size"], "write it as NAME=VALUE"),
        (["--out", "new", "--task-option", "colour=red"], "no option 'colour'"),
        (["--out", "new", "--config", "missing.yaml"], "missing.yaml can't be read: No such file"),
        (["--out", "new", "--config", "odd.yaml"], "unknown setting 'learning_rate'"),
        (["--out", "full"], "isn't empty"),
        (["--out", "file/below"], "choose another --out"),
        (["--resume", "nowhere"], "there is no folder nowhere to resume"),
        (["--resume", "full", "--out", "other"], "leave --out out"),
        (["--out", "new", "--no-such-option"], "No such option"),
        (["--out", "new", "--delta", "0.001"], "at most --delta=1e-05; if it is meant, ask for it by name: --lax-delta\n"),
        (["--out", "new", "--task", "csv:columns.csv"], "Name yours: --task-option text_column=..., --task-option label_co"),
        (["--out", "new", "--task-option", "test=a"], "--task-option test=/"),
    ],
)
def test_a_wrong_argument_is_exit_code_2_and_nothing_is_written(tmp_path, monkeypatch, capsys, extra, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept.txt").write_text("kept")
    (tmp_path / "file").write_text("kept")
    (tmp_path / "columns.csv").write_text("words,label\na,b\n")
    (tmp_path / "odd.yaml").write_text("learning_rate: 1\n")
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
    given = [a for pair in zip(SMALL[::2], SMALL[1::2], strict=True) if pair[0] not in extra for a in pair]
    assert run(["train", *given, *extra]) == 2
    told, errors = capsys.readouterr()
    assert told == ""
    assert message in errors
    assert "Traceback" not in errors
    assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == before


def test_a_failed_run_is_exit_code_1(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("groupclip.run.loop.evaluate", lambda *_: 1 / 0)
    out = tmp_path / "run"
    assert run(["train", *SMALL, "--steps", "2", "--out", str(out)]) == 1
    errors = capsys.readouterr().err
    assert "groupclip: step 1 failed: ZeroDivisionError: division by zero" in errors
    assert f"groupclip train --resume {out}" in errors


def running(out):
    """The command in a process of its own, once it has shown a step."""
    process = subprocess.Popen(
        [sys.executable, "-m", "groupclip.cli", "train", *SLOW, "--out", str(out)], stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    while not (out / "metrics.jsonl").is_file() or not (out / "metrics.jsonl").read_text():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return process


def test_ctrl_c_finishes_the_step_and_says_how_to_go_on(tmp_path):
    out = tmp_path / "run"
    process = running(out)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert "finishing the step" in errors
    assert f"groupclip train --resume {out}" in errors
    assert "Traceback" not in errors
    prepared = resume(out)
    steps = prepared.loop.ledger.steps
    assert 1 <= steps < 12
    assert (prepared.loop.progress.updates, prepared.loop.progress.lost) == (steps, ())
    prepared.folder.close()


def test_kill_9_from_outside_at_any_moment(tmp_path):
    out = tmp_path / "run"
    process = running(out)
    time.sleep(0.3)
    process.kill()
    process.communicate()
    seen = len((out / "metrics.jsonl").read_text().splitlines())
    prepared = resume(out)
    assert seen <= prepared.loop.ledger.steps <= seen + 1
    assert prepared.loop.progress.lost == ((1, prepared.loop.ledger.steps),)  # less than 30 s: no checkpoint yet
    prepared.folder.close()


def test_a_stopped_run_is_resumed_by_the_command(tmp_path, capsys):
    out = tmp_path / "run"
    request = {"task": "digits", "model": "linear", "clipping": "layer-wise", "epsilon": 3, "batch_size": 64, "steps": 4}
    start(request, out).folder.close()  # prepared, but the process ended there
    assert run(["train", "--resume", str(out)]) == 0
    told, _ = capsys.readouterr()
    assert "after 4 steps" in told
    assert run(["train", "--resume", str(out)]) == 2
    assert "is finished" in capsys.readouterr().err


def test_on_a_terminal_there_is_a_bar_with_epsilon_and_time_left():
    from groupclip.models import build_model
    from groupclip.partition.choose import partition
    from groupclip.run.config import checked_request
    from groupclip.run.resolve import resolve
    from groupclip.tasks import load_task

    config = resolve(checked_request({"task": "digits", "epsilon": 3, "steps": 4}), load_task("digits"))
    groups = partition(build_model("linear", input_shape=(1, 8, 8), num_classes=10), "layer-wise")
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    with StopOnSignal() as signals, Terminal(signals, console) as terminal:
        terminal.begin(Beginning(config, groups, 1.0, done=1, lost=1, bands=2, rounds=2, ends="the run ends after step 3 of 4"))
        terminal.step({"step": 2, "epsilon": 1.234, "noisy_gradient_norm": {"head": 0.5}})
        assert not terminal.stop_requested()
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert "resumed: 1 steps are charged already; the updates of 1 of them were lost in a crash" in shown
    assert "the run ends after step 3 of 4" in shown and ", correlated over 2 bands: 2 rounds" in " ".join(shown.split())
    assert re.search(r"2/4 steps epsilon 1\.24 of 3 +(-:--:--|\d+:\d\d:\d\d) noisy gradient norm 0\.5", shown)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_second_signal_ends_at_once(capfd, number, code):
    with StopOnSignal() as signals:
        os.kill(os.getpid(), number)
        assert signals.received == number
        assert signals.exit_code == code
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert "again to stop at once" in capfd.readouterr().err


def test_help_says_how_often_a_run_is_kept_and_how_it_stops(capsys):
    assert run(["train", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"Every {CHECKPOINT_SECONDS:.0f} seconds a checkpoint is written" in told
    assert f"SIGTERM ({128 + signal.SIGTERM}) finish the step" in told


def test_every_setting_has_its_option_and_every_option_its_setting():
    """What isn't a setting says where a run lies and how it is shown; it changes no result."""
    about = {"config", "out", "resume", "keep_resume", "workers", "threads", "as_json", "quiet"}
    named = {"task_option": "task_options", "model_option": "model_options", "tell": "told"}
    options = [named.get(param.name, param.name) for param in train.params]
    assert sorted(set(options) - about) == sorted(KEYS)
    assert len(set(options)) == len(options)
