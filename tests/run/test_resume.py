"""Stopped, killed and resumed runs: the ledger is never too low, and ends where it would have ended."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from groupclip.errors import PrivacyViolation
from groupclip.run import ConfigError, RunFailed, RunInterrupted, resume, start
from groupclip.run.journal import Journal, read_journal
from small_runs import REQUEST, SELDOM, STEPS, At, StopAfter, contents, stopped_run

pytestmark = pytest.mark.usefixtures("outlines")

KILLED = str(Path(__file__).parents[1] / "helpers" / "killed_run.py")


def rows_of(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def privacy_of(outcome):
    return json.loads((outcome.release / "privacy.json").read_text())


def killed_run(out, *, at, checkpoint_seconds):
    """A run, or the rest of one, in a process of its own that gets SIGKILL when the row of a step is told."""
    process = subprocess.run([sys.executable, KILLED, str(out), str(at), str(checkpoint_seconds)])
    assert process.returncode == -signal.SIGKILL


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return start(REQUEST, tmp_path_factory.mktemp("runs") / "undisturbed").train()


def test_stopped_and_resumed_is_the_undisturbed_run(tmp_path, undisturbed):
    out = tmp_path / "run"
    with pytest.raises(RunInterrupted, match=r"after step 3 of 8.*groupclip train --resume"):
        start(REQUEST, out, checkpoint_seconds=SELDOM).train(StopAfter(3))
    assert not (out / "release").exists()
    outcome = resume(out).train()
    assert (outcome.steps, outcome.updates) == (STEPS, STEPS)
    assert privacy_of(outcome) == privacy_of(undisturbed)
    assert [row["step"] for row in rows_of(out)] == list(range(1, STEPS + 1))
    assert not (out / "resume").exists()


def test_stopped_at_every_step(tmp_path, undisturbed):
    out = tmp_path / "run"
    stopped_run(out, 1)
    for step in range(2, STEPS):
        with pytest.raises(RunInterrupted):
            resume(out).train(StopAfter(step))
    outcome = resume(out).train()
    assert (outcome.steps, outcome.updates) == (STEPS, STEPS)
    assert privacy_of(outcome) == privacy_of(undisturbed)


def test_killed_before_a_checkpoint_all_steps_stay_charged(tmp_path, undisturbed):
    out = tmp_path / "run"
    killed_run(out, at=5, checkpoint_seconds=SELDOM)
    assert len(rows_of(out)) == 5  # five noisy results were seen
    run = resume(out)
    assert run.loop.ledger.steps == 5
    outcome = run.train()
    assert (outcome.steps, outcome.updates) == (STEPS, STEPS - 5)
    assert run.loop.progress.lost == ((1, 5),)
    assert privacy_of(outcome) == privacy_of(undisturbed)
    assert "steps 1 to 5 were lost" in outcome.report.read_text()


def test_killed_after_a_checkpoint_only_later_steps_are_lost(tmp_path):
    out = tmp_path / "run"
    stopped_run(out, 2)
    killed_run(out, at=4, checkpoint_seconds=SELDOM)
    run = resume(out)
    outcome = run.train()
    assert run.loop.progress.lost == ((3, 4),)
    assert (outcome.steps, outcome.updates) == (STEPS, STEPS - 2)


def test_killed_at_the_last_step(tmp_path):
    out = tmp_path / "run"
    killed_run(out, at=STEPS, checkpoint_seconds=0)
    outcome = resume(out).train()
    assert (outcome.steps, outcome.updates) == (STEPS, STEPS - 1)
    assert outcome.test_accuracy is not None


def test_a_step_is_charged_before_its_batch_is_drawn(tmp_path, monkeypatch):
    out = tmp_path / "run"

    def stop(*_):
        raise MemoryError("no room for this batch")

    run = start(REQUEST, out, checkpoint_seconds=SELDOM)
    monkeypatch.setattr("groupclip.sampling.batches.LogicalBatch.__iter__", stop)
    with pytest.raises(RunFailed, match="no room for this batch"):
        run.train()
    monkeypatch.undo()
    assert read_journal(out / "resume" / "ledger.jsonl") == 1
    assert resume(out).loop.ledger.steps == 1


def test_after_a_failure_the_steps_before_it_are_kept(tmp_path):
    out = tmp_path / "run"

    def fail():
        raise ValueError("image 7 can't be read")

    with pytest.raises(RunFailed, match="step 4 failed: image 7 can't be read"):
        start(REQUEST, out, checkpoint_seconds=SELDOM).train(At(4, fail))
    run = resume(out)
    assert (run.loop.ledger.steps, run.loop.progress.updates, run.loop.progress.lost) == (4, 4, ())
    run.folder.close()


def test_weights_and_optimizer_go_on_where_they_were(tmp_path):
    out = tmp_path / "run"
    run = start(REQUEST, out, checkpoint_seconds=SELDOM)
    with pytest.raises(RunInterrupted):
        run.train(StopAfter(3))
    again = resume(out)
    before, after = run.trainer, again.trainer
    for name, value in before.model.state_dict().items():
        assert torch.equal(value, after.model.state_dict()[name])
    old, new = before.optimizer.state_dict(), after.optimizer.state_dict()
    assert new["param_groups"] == old["param_groups"]
    for index, entries in old["state"].items():
        assert set(entries) == set(new["state"][index]) == {"step", "exp_avg", "exp_avg_sq"}
        for name, value in entries.items():
            assert torch.equal(value, new["state"][index][name])
    again.folder.close()


@pytest.mark.parametrize("key", ["epsilon", "steps", "seed", "lr", "clipping"])
def test_other_settings_are_refused_and_nothing_is_touched(tmp_path, key):
    out = tmp_path / "run"
    stopped_run(out, 1)
    before = contents(out)
    other = {"epsilon": 4.0, "steps": 9, "seed": 1, "lr": 0.5, "clipping": "all-layer"}[key]
    with pytest.raises(ConfigError, match=f"{key}=.* differs from the run to be resumed"):
        resume(out, {key: other})
    assert contents(out) == before


def test_equal_settings_are_accepted(tmp_path):
    out = tmp_path / "run"
    stopped_run(out, STEPS - 1)
    assert resume(out, REQUEST).train().steps == STEPS


def test_an_edited_run_yaml_is_refused(tmp_path):
    out = tmp_path / "run"
    stopped_run(out, 1)
    text = (out / "run.yaml").read_text()
    (out / "run.yaml").write_text(text.replace("epsilon: 3.0", "epsilon: 1.0"))
    with pytest.raises(ConfigError, match=r"changed since the run began: epsilon is 1.0, it was 3.0"):
        resume(out)


def test_a_finished_run_is_not_resumed(undisturbed):
    with pytest.raises(ConfigError, match="is finished: its release is in"):
        resume(undisturbed.out)


def test_there_must_be_something_to_resume(tmp_path):
    with pytest.raises(ConfigError, match="there is no folder"):
        resume(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        resume(tmp_path)


def test_without_the_journal_nothing_goes_on(tmp_path):
    out = tmp_path / "run"
    stopped_run(out, 1)
    (out / "resume" / "ledger.jsonl").unlink()
    with pytest.raises(PrivacyViolation, match="epsilon could be understated"):
        resume(out)


def test_a_damaged_checkpoint_is_named(tmp_path):
    out = tmp_path / "run"
    stopped_run(out, 1)
    path = out / "resume" / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunFailed, match="is no checkpoint of this version"):
        resume(out)


def test_a_row_that_was_cut_off_is_taken_off(tmp_path):
    out = tmp_path / "run"
    stopped_run(out, STEPS - 2)
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "upd')
    resume(out).train()
    assert [row["step"] for row in rows_of(out)] == [*range(1, STEPS - 1), STEPS]


def test_the_journal_counts_a_line_that_was_cut_off(tmp_path):
    path = tmp_path / "ledger.jsonl"
    journal = Journal(path, charged=2)
    assert (journal.charge(), journal.charge()) == (3, 4)
    journal.close()
    assert read_journal(path) == 4
    path.write_text(path.read_text() + '{"char')
    assert read_journal(path) == 5
    path.write_text('{"charged": 1}\nrubbish\n')
    with pytest.raises(PrivacyViolation, match="damaged at the line 'rubbish'"):
        read_journal(path)
