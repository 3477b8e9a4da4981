"""``groupclip train`` with correlated noise: a stop costs a round at most, a kill no more than its lost steps, and all is told."""

import json
from typing import Any

import pytest
import torch

from groupclip.errors import PrivacyViolation
from groupclip.privacy.mechanism import Mechanism
from groupclip.run import Beginning, ConfigError, Nobody, RunFailed, RunInterrupted, resume, start
from groupclip.run.journal import Journal, read_begun, read_journal
from groupclip.statement.verified import differences
from small_runs import REQUEST, SELDOM, At, StopAfter

pytestmark = pytest.mark.usefixtures("outlines")

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


class Hearing(Nobody):
    """Keeps what it hears at the beginning."""

    def begin(self, beginning: Beginning) -> None:
        self.heard = beginning


def test_a_stop_and_a_resume_cost_a_round_and_epsilon_is_not_passed(tmp_path):
    """3 and 4 steps of 4 bands are the plan's 2 rounds: the 8th step would be of a third."""
    out = tmp_path / "run"
    told_at_stop = r"stopped after step 3 of 8; go on with: .*\nThen the run ends after step 7 of 8, or it would pass"
    with pytest.raises(RunInterrupted, match=told_at_stop):
        start(BANDED, out, checkpoint_seconds=SELDOM).train(StopAfter(3))
    hearing = Hearing()
    outcome = resume(out).train(hearing)
    assert "the run ends after step 7 of 8, or it would pass epsilon 3" in hearing.heard.ends and "--bands 1" in hearing.heard.ends
    assert hearing.heard.ends in outcome.findings
    record = told(outcome)
    assert (record["rounds"], record["steps_taken"], outcome.steps, outcome.updates) == (2, 7, 7, 7)
    assert record["epsilon"] == plan_of(record).spent(delta=record["delta"], rounds=2).epsilon == outcome.epsilon <= 3.0
    assert differences(record) == []
    assert "ended before the last" in record["told"]["early_stopping"]
    shown = [row["epsilon"] for row in rows(out)]
    assert shown == sorted(shown) and shown[-1] == pytest.approx(record["epsilon"], rel=1e-9)
    assert [row["step"] for row in rows(out)] == list(range(1, 8)) and "test_accuracy" in rows(out)[-1]


def test_a_stop_at_the_end_of_a_round_costs_none(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(RunInterrupted) as stopped:
        start(BANDED, out, checkpoint_seconds=SELDOM).train(StopAfter(4))
    assert "ends after" not in str(stopped.value)
    hearing = Hearing()
    outcome = resume(out).train(hearing)
    assert (outcome.steps, told(outcome)["rounds"], hearing.heard.ends) == (8, 2, "")
    assert (hearing.heard.bands, hearing.heard.rounds) == (4, 2)
    assert not any("ends after" in finding for finding in outcome.findings)


def test_a_run_of_one_band_takes_all_steps_after_a_stop(tmp_path):
    with pytest.raises(RunInterrupted) as stopped:
        start(REQUEST, tmp_path / "run", checkpoint_seconds=SELDOM).train(StopAfter(3))
    assert "ends after" not in str(stopped.value)
    assert resume(tmp_path / "run").train().steps == 8


def test_where_no_round_is_left_a_run_that_goes_on_ends_with_what_it_has(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(RunInterrupted):
        start(BANDED, out, checkpoint_seconds=SELDOM).train(StopAfter(3))
    with pytest.raises(RunInterrupted, match="Then the run ends after step 5 of 8"):
        resume(out, checkpoint_seconds=SELDOM).train(StopAfter(5))
    outcome = resume(out).train(keep_resume=True)
    record = told(outcome)
    assert (record["rounds"], record["steps_taken"], outcome.updates) == (2, 5, 5) and outcome.epsilon <= 3.0
    again = resume(out).train()  # as a finished run does: it writes the same once more
    assert (again.steps, again.epsilon) == (5, outcome.epsilon)


def leave() -> None:
    raise SystemExit  # no checkpoint is written


def test_crashes_cost_a_round_each(tmp_path):
    """Two processes without a checkpoint since the beginning, at 3 and 4 steps: 1 and 1 rounds, and not 1 as one."""
    out = tmp_path / "run"
    with pytest.raises(SystemExit):
        start(BANDED, out, checkpoint_seconds=SELDOM).train(At(3, leave))
    with pytest.raises(SystemExit):
        resume(out, checkpoint_seconds=SELDOM).train(At(4, leave))
    record = told(resume(out).train())
    assert record["steps_taken"] == 4 and record["rounds"] == 2  # of 2: none is left
    assert record["epsilon"] == plan_of(record).spent(delta=record["delta"], rounds=2).epsilon <= 3.0


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
    assert record["steps_taken"] == 3 and record["rounds"] == 3  # of 2: no step is taken any more, and epsilon is told
    assert record["epsilon"] == plan_of(record).spent(delta=record["delta"], rounds=3).epsilon > 3.0


@pytest.mark.parametrize("begun", ["[0, true]", "7", '["0"]'])
def test_a_journal_that_was_edited_is_refused(tmp_path, begun):
    path = tmp_path / "ledger.jsonl"
    path.write_text(f'{{"charged": 3, "begun": {begun}}}\n{{"charged": 4}}\n')
    with pytest.raises(PrivacyViolation, match="damaged"):
        read_begun(path)
    path.write_text('{"charged": 3, "begun": [0, 3]}\n{"charged": 4}\n')
    assert (read_journal(path), read_begun(path)) == (4, (0, 3))


def test_a_beginning_inside_a_process_is_in_the_journal(tmp_path):
    """Beside the line of its step, and before the step is taken; a step that is begun anew twice is one."""
    path = tmp_path / "ledger.jsonl"
    journal = Journal(path, 3, (0, 3))
    journal.charge()
    journal.begin((0, 3))  # is known
    journal.charge()
    journal.begin((0, 3, 4))
    journal.begin((0, 3, 4))
    journal.charge()
    journal.close()
    assert len(path.read_text().splitlines()) == 5
    assert (read_journal(path), read_begun(path)) == (6, (0, 3, 4))
    for wrong in ('{"charged": 5}', '{"charged": 8}', '{"charged": 8, "begun": [0]}', '{"charged": 7, "begun": [0]}'):
        with pytest.raises(PrivacyViolation, match="damaged"):
            read_journal(_with(path, wrong))
    with pytest.raises(PrivacyViolation, match="damaged"):
        read_begun(_with(path, '{"charged": 6, "begun": 5}'))


def _with(path, line):
    changed = path.with_name("changed.jsonl")
    changed.write_text(path.read_text() + line + "\n")
    return changed


def test_noise_that_would_begin_anew_inside_a_run_ends_it_before_the_step(tmp_path):
    """A parameter that got another type costs a round that epsilon has no room for: 3 and 5 steps of 4 bands are 3 rounds, of 2."""
    out = tmp_path / "run"
    run = start({**BANDED, "optimizer": "sgd"}, out, checkpoint_seconds=SELDOM)
    head = next(m for m in run.model.modules() if isinstance(m, torch.nn.Linear))
    head.register_forward_pre_hook(lambda module, given: (given[0].to(module.weight.dtype),))
    with pytest.raises(RunFailed, match="step 4 failed: correlated noise would be begun anew at step 4, inside the run"):
        run.train(At(3, lambda: run.model.double() and None))
    assert run.loop.ledger.steps == 3 and [row["step"] for row in rows(out)] == [1, 2, 3]
    record = told(resume(out).train())
    assert record["rounds"] == 2 and record["epsilon"] <= 3.0 and differences(record) == []


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
