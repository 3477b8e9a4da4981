"""``groupclip audit``: both audits on a small run, exit codes, and nothing that isn't asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from groupclip.cli.app import run
from groupclip.cli.audited import beside
from groupclip.noise.sources import SecureNoise
from groupclip.privacy.mechanism import Mechanism
from groupclip.run import start

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
REQUEST = {
    "task": "digits",
    "model": "linear",
    "clipping": "layer-wise",
    "epsilon": 3.0,
    "batch_size": 64,
    "device": "cpu",
}
SMALL += ["--steps", "3", "--trials", "40", "--canaries", "60", "--confidence", "0.999999"]  # a false alarm: 2e-6


def test_both_audits_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plan"]["dataset_size"] == 1437
    assert found["step"]["trials"] == 40
    assert found["step"]["mu_claimed"] == pytest.approx(1 / found["plan"]["noise_multiplier"])  # the plan's own noise
    assert found["run"]["epsilon_claimed"] == pytest.approx(
        found["epsilon_claimed"], rel=1e-3
    )  # at the plan's own rate
    assert found["step"]["mu_of_canary"] == pytest.approx(found["step"]["mu_claimed"], rel=0.01)
    assert found["run"]["guesses"] == 12
    for name in ("step", "run"):
        assert not found[name]["violates"]
        assert found[name]["about"] == "made-up canaries alone"


def test_the_cap_of_truncated_batches_is_the_plans(capsys: pytest.CaptureFixture[str]) -> None:
    """With the default cap in its place, another plan than the named one would be audited."""
    kind = ["--sampling", "truncated-poisson", "--adjacency", "zero-out", "--max-batch-size", "210"]
    assert run([*SMALL, *kind, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # of 1,437 samples and 60 canaries: 200 * 1497 / 1437 is 208, 210 * 208 / 200 is 218
    assert (found["run"]["plan"]["expected_batch_size"], found["run"]["plan"]["max_batch_size"]) == (208, 218)
    assert found["run"]["epsilon_claimed"] == pytest.approx(found["epsilon_claimed"], rel=0.05)
    assert run([*SMALL, *kind]) == 0
    assert "went from 200 to 208, the cap of a batch from 210 to 218" in capsys.readouterr().out


@pytest.mark.parametrize(("batch", "cap"), [(100, 100), (99, 100), (50, 51)])
def test_a_plan_with_canaries_keeps_its_cap_possible(batch: int, cap: int) -> None:
    plan = Mechanism(
        dataset_size=100, expected_batch_size=batch, steps=2, noise_multiplier=1.0, sampling="truncated-poisson",
        adjacency="zero-out", max_batch_size=cap,
    )  # fmt: skip
    for canaries in range(1, 200):
        more = beside(plan, canaries)
        assert more.max_batch_size == pytest.approx(cap * more.expected_batch_size / batch, abs=1)


def test_a_plan_with_correlated_noise(capsys: pytest.CaptureFixture[str]) -> None:
    """The run is of the plan, whose parts hold its batches with canaries too, to the last bit; the step is of its noise alone."""
    kind = ["--bands", "7", "--adjacency", "zero-out", "--steps", "7"]  # 7 * 200 of 1,437 samples
    assert run([*SMALL, *kind, "--quiet"]) == 0
    told = capsys.readouterr().out
    assert "how noise is correlated shows in the run alone" in told and "1 rounds with independent noise" in told
    plan = Mechanism(
        dataset_size=1400, expected_batch_size=200, steps=7, noise_multiplier=1.0, adjacency="zero-out", bands=7
    )
    for canaries in range(1, 200, 7):
        assert beside(plan, canaries).part_rate == pytest.approx(1.0, abs=1e-12)


def test_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--canaries", "0"]) == 0
    text = capsys.readouterr().out
    assert "Step audit" in text
    assert "One-run audit" not in text
    assert "no statistic of a private sample" in text


def test_progress_goes_to_standard_error_and_nothing_warns_of_the_audits_own_batches(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert run(SMALL) == 0
    told, progress = capsys.readouterr()
    assert "step audit: one step on each of two made-up batches, 40 trials\n  4 of 40 trials\n" in progress
    assert "one-run audit: a run with 60 canaries, 3 steps\n  1 of 3 steps\n" in progress
    assert "  40 of 40 trials\n" in progress
    assert "of 40 trials" not in told
    assert not [message for message in caplog.messages if "batch" in message]
    assert run([*SMALL, "--quiet", "--canaries", "0"]) == 0
    assert capsys.readouterr().err == ""


def test_a_violation_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    add = SecureNoise.add_
    monkeypatch.setattr(SecureNoise, "add_", lambda self, tensor, std: add(self, tensor, std / 10))
    assert run([*SMALL, "--trials", "200", "--canaries", "0"]) == 1
    assert "VIOLATION" in capsys.readouterr().out


def test_without_numbers_the_audit_could_refute_the_claim(capsys: pytest.CaptureFixture[str]) -> None:
    """Trials that notice half of the noise, canaries that could show more than epsilon. A false alarm: 2e-6."""
    asked = [*SMALL[:7], "--noise-multiplier", "1", "--batch-size", "100", "--steps", "2", "--confidence", "0.999999"]
    assert run([*asked, "--delta", "1e-9", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plan"]["noise_multiplier"] == 1
    assert found["step"]["trials"] < 1000
    assert found["run"]["epsilon_ceiling"] > found["run"]["epsilon_claimed"]


def test_half_of_the_noise_is_noticed_by_the_default_trials(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Noise that is too small by 2.5 is missed with probability below 1e-4; by 2, with 5 % at most, as the report says."""
    add = SecureNoise.add_
    monkeypatch.setattr(SecureNoise, "add_", lambda self, tensor, std: add(self, tensor, std / 2.5))
    asked = [*SMALL[:7], "--noise-multiplier", "1", "--steps", "2", "--canaries", "0"]
    assert run(asked) == 1
    assert "would be noticed with probability 95 %" in capsys.readouterr().out


def test_the_plan_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    kind = {"sampling": "truncated-poisson", "adjacency": "zero-out", "hardened": True, "allocation": "threshold"}
    made = start({**REQUEST, "steps": 3, **kind}, out).train()
    audited = ["audit", "--run", str(out), "--trials", "20", "--canaries", "50", "--confidence", "0.999999", "--json"]
    assert run(audited) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plan"]["noise_multiplier"] == made.noise_multiplier
    assert found["epsilon_claimed"] == made.epsilon
    assert found["plan"]["sampling"] == "truncated-poisson"
    assert run([*audited, "--epsilon", "2"]) == 2
    assert "has all settings of that run: leave --epsilon out" in capsys.readouterr().err
    record = out / "release" / "privacy.json"
    record.write_text(record.read_text().replace('"noise_multiplier": ', '"noise_multiplier": 1'))
    assert run(audited) == 2
    assert "is of another plan" in capsys.readouterr().err
    assert run(["audit", "--run", str(tmp_path / "nothing")]) == 2
    assert "can't be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--confidence", "2"], "confidence"),
        (["--model", "no-such"], "no-such"),
        (["--epsilon", "-1"], "epsilon"),
        (["--trials", "1"], "trials"),
        (["--noise-multiplier", "1"], "give either --epsilon or --noise-multiplier"),
        (["--sampling", "without-replacement"], "use --adjacency='replace-one'"),
    ],
)
def test_wrong_arguments(wrong: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, *wrong]) == 2
    assert message in capsys.readouterr().err


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--help"]) == 0
    assert "groupclip audit --task digits --clipping uniform:2 --epsilon 3" in capsys.readouterr().out


def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--epsilon", "1"]) == 2
    assert "no task is given" in capsys.readouterr().err
    assert run([*SMALL[:7]]) == 2
    assert "no epsilon is given" in capsys.readouterr().err
