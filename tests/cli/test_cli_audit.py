"""``groupclip audit``: both audits on a small run, exit codes, and nothing that isn't asked for."""

from __future__ import annotations

import json

import pytest

from groupclip.cli.app import run
from groupclip.noise import SecureNoise

SMALL = [
    "audit",
    "--task",
    "digits",
    "--model",
    "linear",
    "--clipping",
    "layer-wise",
    "--epsilon",
    "8",
    "--batch-size",
    "200",
]
SMALL += ["--steps", "3", "--trials", "40", "--canaries", "60", "--confidence", "0.999999"]  # a false alarm: 2e-6


def test_both_audits_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plan"]["dataset_size"] == 1437 + 60
    assert found["step"]["trials"] == 40
    assert found["step"]["mu_of_canary"] == pytest.approx(found["step"]["mu_claimed"], rel=0.01)
    assert found["run"]["guesses"] == 12
    for name in ("step", "run"):
        assert not found[name]["violates"]
        assert found[name]["about"] == "made-up canaries alone"


def test_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--canaries", "0"]) == 0
    text = capsys.readouterr().out
    assert "Step audit" in text
    assert "One-run audit" not in text
    assert "no statistic of a private sample" in text


def test_a_violation_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    add = SecureNoise.add_
    monkeypatch.setattr(SecureNoise, "add_", lambda self, tensor, std: add(self, tensor, std / 10))
    assert run([*SMALL, "--trials", "200", "--canaries", "0"]) == 1
    assert "VIOLATION" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--confidence", "2"], "confidence"),
        (["--model", "no-such"], "no-such"),
        (["--epsilon", "-1"], "epsilon"),
        (["--trials", "1"], "trials"),
    ],
)
def test_wrong_arguments(wrong: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, *wrong]) == 2
    assert message in capsys.readouterr().err


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--help"]) == 0
    assert "groupclip audit --task digits --clipping uniform:2 --epsilon 3" in capsys.readouterr().out
