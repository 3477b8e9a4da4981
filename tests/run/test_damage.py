"""A run whose files were edited, damaged or exchanged: refused by name and as they are, or harmless; nothing is unpickled."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save

from groupclip.errors import GroupClipError, PrivacyViolation
from groupclip.privacy.mechanism import Mechanism
from groupclip.run import ConfigError, RunFailed, resume
from small_runs import contents, stopped_run

JOURNAL, CHECKPOINT = "resume/ledger.jsonl", "resume/checkpoint.safetensors"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After step 3 of 8."""
    out = tmp_path_factory.mktemp("runs") / "run"
    stopped_run(out, 3)
    return out


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


LINES = [
    *(f'{{"charged": {value}}}' for value in ("null", '"3"', "-5", "1e99", "2.5", "NaN", "true", "[3]")), "[]", "3", "{}", "",
    '{"charged": 3}\n{"charged": 3}', '{"charged": 3}\n{"charged": 5}', '{"charged": 3}\n{"charged": 2}', "\0", "\u2028",
]  # fmt: skip


@pytest.mark.parametrize("text", LINES)
def test_a_journal_that_is_not_as_it_was_written(run: Path, text: str) -> None:
    (run / JOURNAL).write_text(text + "\n")
    before = contents(run)
    with pytest.raises(PrivacyViolation, match="is damaged at the line"):
        resume(run)
    assert contents(run) == before


@pytest.mark.parametrize(
    "content", [b"", b'{"charged": 3}', os.urandom(40).replace(b"\n", b"")], ids=("empty", "no end", "bytes")
)
def test_a_journal_without_a_whole_line(run: Path, content: bytes) -> None:
    (run / JOURNAL).write_bytes(content)
    with pytest.raises(PrivacyViolation, match="is damaged"):
        resume(run)


def test_a_journal_that_counts_less_than_the_checkpoint_takes_nothing_back(run: Path) -> None:
    (run / JOURNAL).write_text('{"charged": 1}\n')
    going = resume(run)
    assert going.loop.ledger.steps == 3
    going.folder.close()


@pytest.mark.parametrize(
    "text", ["rubbish", "[1]", "{}", '{"step": "1", "epsilon": 1, "noisy_gradient_norm": {}}', "\0"]
)
def test_metrics_that_are_no_rows(run: Path, text: str) -> None:
    (run / "metrics.jsonl").write_text(text + "\n")
    with pytest.raises(RunFailed, match=r"metrics\.jsonl is damaged at the line"):
        resume(run)


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, torch.Tensor]], object]) -> None:
    with safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["groupclip"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(facts, tensors)
    path.write_bytes(save(tensors, {"groupclip": json.dumps(facts)}))


def another_noise(facts: dict[str, Any], _: object) -> None:
    """With the right hash of it: as if the first three steps had had so much noise."""
    ledger = facts["engine"]["ledger"]
    mechanism = Mechanism(**{**ledger["mechanism"], "noise_multiplier": 50.0})
    ledger.update(mechanism=mechanism.to_dict(), plan_hash=mechanism.plan_hash)


def another_rate(facts: dict[str, Any], _: object) -> None:
    ledger = facts["engine"]["ledger"]
    mechanism = Mechanism(**{**ledger["mechanism"], "expected_batch_size": 63})
    ledger.update(mechanism=mechanism.to_dict(), plan_hash=mechanism.plan_hash)


EDITS: dict[str, tuple[Callable[[dict[str, Any], dict[str, torch.Tensor]], object], str]] = {
    "sigma": (lambda f, t: f["engine"]["ledger"]["mechanism"].update(noise_multiplier=0.5), "was edited"),
    "sigma and hash": (another_noise, "was edited"),
    "rate and hash": (another_rate, "was edited"),
    "planned steps": (lambda f, t: f["engine"]["ledger"]["mechanism"].update(steps=99), "was edited"),
    "hash": (lambda f, t: f["engine"]["ledger"].update(plan_hash="0"), "of another plan"),
    "no ledger": (lambda f, t: f["engine"].update(ledger=None), "is damaged"),
    "no plan": (lambda f, t: f["engine"]["ledger"].update(mechanism={"steps": 8}), "is damaged"),
    "epsilon": (lambda f, t: f["config"].update(epsilon=1.0), "was changed since the run began"),
    "a setting less": (lambda f, t: f["config"].pop("lr"), "was changed since the run began"),
    "thresholds": (lambda f, t: f["engine"].update(thresholds={"head": 9.0}), "other thresholds"),
    "no noise": (lambda f, t: f["engine"].pop("noise"), "not the state of an engine"),
    "steps": (lambda f, t: f["engine"]["ledger"]["steps"].update(user=-1), "whole number"),
    "updates": (lambda f, t: f["progress"].update(updates=-3), "its progress is"),
    "lost steps": (lambda f, t: f["progress"].update(lost=[["a", 2]]), "its progress is"),
    "no optimizer": (lambda f, t: f.pop("optimizer"), "no checkpoint of this version"),
    "optimizer": (lambda f, t: f["optimizer"].update(param_groups=[]), "is damaged"),
    "a weight less": (lambda f, t: t.pop("model.head.bias"), "is damaged"),
    "weights of another shape": (lambda f, t: t.update({"model.head.bias": torch.zeros(3)}), "is damaged"),
    "a tensor more": (lambda f, t: t.update({"optimizer.x.y": torch.zeros(3)}), "no checkpoint of this version"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_checkpoint(run: Path, name: str) -> None:
    change, message = EDITS[name]
    rewritten(run / CHECKPOINT, change)
    before = contents(run)
    with pytest.raises((GroupClipError, ConfigError), match=message):
        resume(run)
    assert contents(run) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda f, t: f["engine"]["ledger"].update(begun=[9]),
        lambda f, t: f["engine"]["ledger"].update(begun="0"),
        lambda f, t: f["engine"]["ledger"].update(begun=[0]),  # of one band
        lambda f, t: f.update(config=[]),
        lambda f, t: f.update(engine="none"),
    ],
)
def test_damage_is_told_as_damage_and_not_as_a_wrong_argument(run: Path, change: Any) -> None:
    """The command ends with 2 for a wrong argument, and asks to look at the flags."""
    rewritten(run / CHECKPOINT, change)
    with pytest.raises(RunFailed, match=r"checkpoint\.safetensors is (damaged|no checkpoint)"):
        resume(run)


def test_an_unedited_one_goes_on(run: Path) -> None:
    """The twin: written again as it is."""
    rewritten(run / CHECKPOINT, lambda facts, tensors: None)
    resume(run).folder.close()


class Payload:
    """Unpickled, it would leave a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


def test_nothing_is_unpickled_or_constructed(run: Path, tmp_path: Path) -> None:
    left = tmp_path / "left"
    pickle.loads(pickle.dumps(Payload(str(left)))).close()
    assert left.exists()  # the twin: it would work
    left.unlink()
    for file in (CHECKPOINT, JOURNAL, "metrics.jsonl", "run.yaml"):
        kept = (run / file).read_bytes()
        (run / file).write_bytes(pickle.dumps(Payload(str(left))))
        with pytest.raises((GroupClipError, ConfigError)):
            resume(run).folder.close()
            raise RunFailed("a pickled journal of metrics is cut off, being no line")
        (run / file).write_bytes(kept)
    (run / "run.yaml").write_text(f"task: !!python/object/apply:builtins.open ['{left}', 'w']\n")
    with pytest.raises(ConfigError, match="is no YAML"):
        resume(run)
    assert not left.exists()
