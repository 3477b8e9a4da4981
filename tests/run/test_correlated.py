"""``groupclip train`` with correlated noise: a stop costs a round at most, a kill no more than its lost steps, and all is told."""

import json
from typing import Any

import pytest

from groupclip.errors import PrivacyViolation
from groupclip.privacy.mechanism import Mechanism
from groupclip.run import ConfigError, RunInterrupted, resume, start
from groupclip.run.journal import read_begun, read_journal
from groupclip.statement.verified import differences
from small_runs import REQUEST, SELDOM, At, StopAfter

BANDED: dict[str, Any] = {**REQUEST, "bands": 4, "adjacency": "zero-out"}


def told(outcome: Any) -> dict[str, Any]:
    return json.loads((outcome.release / "privacy.json").read_text())


def rows(out: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def plan_of(record: dict[str, Any]) -> Mechanism:
    return Mechanism(
        dataset_size=record["dataset_size"], expected_batch_size=64, steps=8, noise_multiplier=record["noise_multiplier"],
        adjacency="zero-out", bands=record["bands"],
    )  # fmt: skip


def test_a_whole_run(tmp_path):
    outcome = start(BANDED, tmp_path / "run").train()
    record = told(outcome)
    assert (record["bands"], record["rounds"], record["steps_taken"]) == (4, 2, 8)
    assert record["epsilon"] == plan_of(record).epsilon(delta=record["delta"]) <= 3.0
    assert differences(record) == []
    assert "cyclic Poisson" in (outcome.release / "README.md").read_text()
    assert "bands: 4" in (tmp_path / "run" / "run.yaml").read_text()


def test_a_stop_and_a_resume_cost_a_round(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(RunInterrupted):
        start(BANDED, out, checkpoint_seconds=SELDOM).train(StopAfter(3))
    outcome = resume(out).train()
    record = told(outcome)
    assert (record["rounds"], record["steps_taken"]) == (3, 8)  # 3 and 5 steps of 4 bands: 1 and 2 rounds
    assert record["epsilon"] == plan_of(record).spent(delta=record["delta"], rounds=3).epsilon == outcome.epsilon
    assert differences(record) == []
    shown = [row["epsilon"] for row in rows(out)]
    assert shown == sorted(shown) and shown[-1] == pytest.approx(record["epsilon"], rel=1e-9)


def leave() -> None:
    raise SystemExit  # no checkpoint is written


def test_crashes_cost_a_round_each(tmp_path):
    """Three processes without a checkpoint since the beginning, at 3, 4 and 8 steps: 1, 1 and 1 rounds, and not 2 as one."""
    out = tmp_path / "run"
    with pytest.raises(SystemExit):
        start(BANDED, out, checkpoint_seconds=SELDOM).train(At(3, leave))
    with pytest.raises(SystemExit):
        resume(out, checkpoint_seconds=SELDOM).train(At(4, leave))
    record = told(resume(out).train())
    assert record["steps_taken"] == 8 and record["rounds"] == 3
    assert record["epsilon"] == plan_of(record).spent(delta=record["delta"], rounds=3).epsilon


def test_steps_of_which_the_journal_does_not_tell_are_a_round_each(tmp_path):
    """resume/ was put back as it was before 3 steps, whose rows are there: how often noise was begun meanwhile isn't known."""
    out = tmp_path / "run"
    run = start(BANDED, out, checkpoint_seconds=SELDOM)
    copy = {path.name: path.read_bytes() for path in (out / "resume").iterdir() if path.is_file()}
    with pytest.raises(SystemExit):
        run.train(At(3, leave))
    for name, content in copy.items():
        (out / "resume" / name).write_bytes(content)
    record = told(resume(out).train())
    assert record["steps_taken"] == 8 and record["rounds"] == 3 + 2


@pytest.mark.parametrize("begun", ["[0, true]", "7", '["0"]'])
def test_a_journal_that_was_edited_is_refused(tmp_path, begun):
    path = tmp_path / "ledger.jsonl"
    path.write_text(f'{{"charged": 3, "begun": {begun}}}\n{{"charged": 4}}\n')
    with pytest.raises(PrivacyViolation, match="damaged"):
        read_begun(path)
    path.write_text('{"charged": 3, "begun": [0, 3]}\n{"charged": 4}\n')
    assert (read_journal(path), read_begun(path)) == (4, (0, 3))


def test_auto_is_resolved_once(tmp_path, monkeypatch):
    out = tmp_path / "run"
    monkeypatch.setattr("groupclip.privacy.bands.MOST", 4)
    with pytest.raises(RunInterrupted):
        start({**BANDED, "bands": "auto"}, out, checkpoint_seconds=SELDOM).train(StopAfter(4))
    record = told(resume(out).train())
    assert record["bands"] in (1, 2, 3, 4) and differences(record) == []
    assert "bands: auto" in (out / "run.yaml").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adjacency": "add-or-remove-one"}, "use adjacency='zero-out'"),
        ({"sampling": "full-batch", "batch_size": 1437}, "use sampling='poisson'"),
        ({"bands": "many"}, "bands"),
        ({"bands": 0}, "bands"),
        ({"adaptive": {"quantile": 0.5}}, "Adaptive thresholds"),
        ({"hardened": True}, "HardenedNoise"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        start({**BANDED, **changes}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_other_bands_in_a_resumed_run_are_refused(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(RunInterrupted):
        start(BANDED, out, checkpoint_seconds=SELDOM).train(StopAfter(3))
    with pytest.raises(ConfigError, match="bands=2 differs from the run to be resumed, which has 4"):
        resume(out, {"bands": 2})
