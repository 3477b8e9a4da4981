"""``groupclip calibrate`` and ``groupclip epsilon``: the same figures as the library, and clear refusals."""

import json
import subprocess
import sys

import pytest

from groupclip import Mechanism
from groupclip.cli import main
from groupclip.cli.app import run

PAPER = ["--dataset-size", "50000", "--batch-size", "1000", "--epochs", "5", "--delta", "1e-5"]


def test_calibrate_is_the_librarys_calibration(capsys):
    assert run(["calibrate", *PAPER, "--epsilon", "2", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    expected = Mechanism(dataset_size=50_000, expected_batch_size=1_000, steps=250).calibrate(epsilon=2, delta=1e-5)
    assert facts["noise_multiplier"] == expected.noise_multiplier
    assert facts["steps"] == 250
    assert facts["epsilon"] == expected.epsilon(delta=1e-5)
    assert 1.98 <= facts["epsilon"] <= 2


def test_epsilon_is_the_librarys_epsilon(capsys):
    assert run(["epsilon", *PAPER, "--noise-multiplier", "1.1", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    mechanism = Mechanism(dataset_size=50_000, expected_batch_size=1_000, steps=250, noise_multiplier=1.1)
    assert facts["epsilon"] == mechanism.epsilon(delta=1e-5) == min(facts["epsilon_rdp"], facts["epsilon_pld"])


def test_one_undoes_the_other(capsys):
    assert run(["calibrate", *PAPER, "--epsilon", "8", "--json"]) == 0
    sigma = json.loads(capsys.readouterr().out)["noise_multiplier"]
    assert run(["epsilon", *PAPER, "--noise-multiplier", repr(sigma), "--json"]) == 0
    assert 7.92 <= json.loads(capsys.readouterr().out)["epsilon"] <= 8


def test_people_get_words(capsys):
    assert run(["epsilon", *PAPER[:4], "--steps", "250", "--noise-multiplier", "1.1"]) == 0
    told = capsys.readouterr().out
    assert "at delta 1e-05, by PLD" in told
    assert "250 Poisson batches of 1000 samples on average" in told
    assert "add-or-remove-one" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["calibrate", *PAPER], "Missing option '--epsilon'"),
        (["calibrate", *PAPER, "--epsilon", "0"], "epsilon=0.0 must be > 0"),
        (["calibrate", *PAPER, "--epsilon", "2", "--steps", "5"], "give either --epochs or --steps, not both"),
        (["calibrate", *PAPER[:4], "--epsilon", "2"], "give either --epochs or --steps"),
        (["epsilon", *PAPER[:-1], "2", "--noise-multiplier", "1"], "delta=2.0 must be in"),
        (["epsilon", *PAPER, "--noise-multiplier", "0"], "noise_multiplier=0"),
        (["epsilon", *PAPER, "--noise-multiplier", "-1"], "must be >= 0"),
        (["epsilon", "--dataset-size", "10", "--batch-size", "20", "--steps", "1", "--noise-multiplier", "1"], "larger"),
        (["epsilon", "--dataset-size", "10", "--batch-size", "0", "--epochs", "1", "--noise-multiplier", "1"], "> 0"),
        (["epsilon", "--dataset-size", "x", "--batch-size", "2", "--epochs", "1"], "'x' is not a valid integer"),
        (["reproduce"], "No such command 'reproduce'"),
    ],
)
def test_a_wrong_argument_is_exit_code_2(capsys, arguments, message):
    assert run(arguments) == 2
    told, errors = capsys.readouterr()
    assert told == ""
    assert message in errors


@pytest.mark.parametrize("command", [[], ["train"], ["calibrate"], ["epsilon"]])
def test_help_has_an_example(capsys, command):
    assert run([*command, "--help"]) == 0
    told = capsys.readouterr().out
    assert "Example" in told
    assert f"groupclip {' '.join(command)}".strip() in told


def test_without_the_extra_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(SystemExit, match=r"needs rich, which isn't installed; run: pip install 'groupclip\[cli\]'"):
        main()


def test_as_a_module_it_ends_with_the_exit_code():
    ended = subprocess.run([sys.executable, "-m", "groupclip.cli", "nothing"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "No such command" in ended.stderr
