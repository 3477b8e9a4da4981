"""Runs that draw on a budget: what is charged stays charged, whatever ends a run, and what is free is freed."""

from __future__ import annotations

import errno
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import groupclip as gc
from groupclip.cli.app import run as command
from groupclip.durable import LockedLines
from groupclip.errors import BudgetExceeded, PrivacyViolation
from groupclip.privacy.figures import figure
from groupclip.run import ConfigError, Nobody, RunFailed, RunInterrupted, resume, start, train
from groupclip.run.journal import read_journal
from groupclip.statement.verified import differences
from small_runs import REQUEST, SELDOM, STEPS, At, StopAfter, contents

pytestmark = pytest.mark.usefixtures("outlines")

PROCESS = str(Path(__file__).parents[1] / "helpers" / "budget_run.py")


@pytest.fixture
def budget(tmp_path: Path) -> gc.Budget:
    return gc.Budget(tmp_path / "digits.budget", epsilon=3.05, delta=1e-5)


def request(budget: gc.Budget, **changed: Any) -> dict[str, Any]:
    return {**REQUEST, "budget": str(budget.path), "delta": 1e-5, **changed}


def entry_of(budget: gc.Budget) -> tuple[int, int, bool]:
    (entry,) = budget.entries
    return entry.taken, entry.planned, entry.is_open


def test_a_run_spends_of_its_budget_what_its_record_says(tmp_path: Path, budget: gc.Budget) -> None:
    outcome = start(request(budget), tmp_path / "run").train()
    assert entry_of(budget) == (STEPS, STEPS, False)
    assert budget.spent().epsilon == pytest.approx(outcome.epsilon, rel=1e-9) and budget.spent().note == ""
    assert budget.entries[0].label.startswith("groupclip train: linear on digits, ")
    with pytest.raises(BudgetExceeded, match="and with this entry it would be"):
        start(request(budget), tmp_path / "another")
    assert not (tmp_path / "another").exists() and len(budget.entries) == 1
    told = b"".join(contents(tmp_path / "run" / "release").values()) + (tmp_path / "run" / "report.html").read_bytes()
    assert b"digits.budget" not in told  # a path tells of a person's machine


@pytest.mark.parametrize("others", [0, 2])
def test_the_record_has_what_the_budget_held(tmp_path: Path, others: int) -> None:
    budget = gc.Budget(tmp_path / "digits.budget", epsilon=9.0, delta=1e-5)
    for _ in range(others):
        budget.add_guarantee(epsilon=0.5, delta=1e-7, label="a secret name")
    outcome = start(request(budget, told={"search": "none"}), tmp_path / "run").train()
    assert outcome.budget is not None
    assert (outcome.budget.epsilon, outcome.budget.delta, outcome.budget.entries) == (budget.spent().epsilon, 1e-5, others + 1)
    record = json.loads((outcome.release / "privacy.json").read_text())
    assert record["budget"] == outcome.budget.to_dict() and differences(record) == []
    assert b"a secret name" not in b"".join(contents(outcome.release).values())


def test_what_is_entered_while_results_are_written_is_told_nowhere_or_everywhere(tmp_path: Path, monkeypatch: Any) -> None:
    """Release, report and outcome are of one look at the budget, whatever another process enters between them."""
    budget = gc.Budget(tmp_path / "digits.budget", epsilon=9.0, delta=1e-5)
    budget.add_guarantee(epsilon=0.5, delta=1e-7)

    def entered_first(act: Any) -> Any:
        def write(*given: Any) -> None:
            gc.Budget(budget.path).add_guarantee(epsilon=0.5, delta=1e-7)
            act(*given)

        return write

    for name in ("write_release", "write_report", "give_back"):
        monkeypatch.setattr(train, name, entered_first(getattr(train, name)))
    outcome = start(request(budget, told={"search": "none"}), tmp_path / "run").train()
    assert len(budget.entries) == 5 and outcome.budget is not None and outcome.budget.entries == 2
    assert json.loads((outcome.release / "privacy.json").read_text())["budget"] == outcome.budget.to_dict()
    for page in (outcome.release / "README.md", outcome.report):
        assert "the budget of this run has 1 other entry" in page.read_text()


def test_a_run_without_a_budget_tells_of_none(tmp_path: Path) -> None:
    outcome = start(REQUEST, tmp_path / "run").train()
    assert outcome.budget is None and json.loads((outcome.release / "privacy.json").read_text())["budget"] is None


def test_the_command_tells_what_the_budget_holds(tmp_path: Path, budget: gc.Budget, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--task", "digits", "--model", "linear", "--epsilon", "1", "--steps", "4", "--quiet", "--budget", str(budget.path)]
    assert command(["train", *flags, "--delta", "1e-5", "--out", str(tmp_path / "run")]) == 0
    told = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("budget"))
    spent = figure(budget.spent().epsilon)
    assert told == f"budget         epsilon {spent} at delta 1e-05 spent by all its entries, 1 with this run"


def test_a_run_that_stops_keeps_its_steps_and_goes_on(tmp_path: Path, budget: gc.Budget) -> None:
    with pytest.raises(RunInterrupted):
        start(request(budget), tmp_path / "run").train(StopAfter(3))
    assert entry_of(budget) == (3, STEPS, True)
    with pytest.raises(BudgetExceeded):  # its rest is nobody else's
        start(request(budget), tmp_path / "another")
    outcome = resume(tmp_path / "run").train()
    assert (outcome.steps, outcome.updates) == (STEPS, STEPS) and entry_of(budget) == (STEPS, STEPS, False)


class Process:
    """Another process, whose runs draw on budgets."""

    def __init__(self, *arguments: object) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, PROCESS, *map(str, arguments)], **pipes)

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def run(self, out: Path, budget: gc.Budget) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([str(out), str(budget.path)]) + "\n")
        self.process.stdin.flush()


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Process, Process]]:
    """Two processes that have begun: starting one takes seconds."""
    found = Process(), Process()
    assert [each.answer() for each in found] == ["ready", "ready"]
    yield found
    for each in found:
        each.process.communicate()


def test_kill_9_loses_no_charge(tmp_path: Path, budget: gc.Budget) -> None:
    killed = Process(5)
    killed.run(tmp_path / "run", budget)
    killed.process.communicate()
    assert killed.process.returncode == -signal.SIGKILL and entry_of(budget) == (5, STEPS, True)
    run = resume(tmp_path / "run")
    assert run.loop.ledger.steps == 5
    outcome = run.train()
    assert (outcome.steps, outcome.updates) == (STEPS, STEPS - 5) and entry_of(budget) == (STEPS, STEPS, False)


def test_of_two_processes_one_gets_the_last_of_a_budget(tmp_path: Path, budget: gc.Budget, both: tuple[Process, Process]) -> None:
    for each, name in zip(both, ("one", "other"), strict=True):
        each.run(tmp_path / name, budget)
    assert sorted(each.answer() for each in both) == ["refused", "trained"] and entry_of(budget) == (STEPS, STEPS, False)


def test_two_processes_are_one_figure(tmp_path: Path, both: tuple[Process, Process]) -> None:
    budget = gc.Budget(tmp_path / "wide.budget", epsilon=6.0, delta=1e-5)
    for each, name in zip(both, ("one", "other"), strict=True):
        each.run(tmp_path / name, budget)
    assert [each.answer() for each in both] == ["trained", "trained"]
    plans = [entry.mechanism for entry in budget.entries]
    assert plans[0] == plans[1] and plans[0] is not None
    twice = gc.Mechanism.from_dict({**plans[0].to_dict(), "steps": 2 * STEPS})
    assert budget.spent().steps == 2 * STEPS and budget.spent().epsilon == pytest.approx(twice.epsilon(delta=1e-5), rel=1e-9)


def test_a_full_disk_of_the_budget_stops_the_run_and_loses_nothing(
    tmp_path: Path, budget: gc.Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = LockedLines.append

    def full(lines: LockedLines, line: str) -> None:
        if json.loads(line).get("taken") == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(lines, line)

    run = start(request(budget), tmp_path / "run", checkpoint_seconds=SELDOM)
    with monkeypatch.context() as disk, pytest.raises(RunFailed, match=r"step 4 failed: .*No space left on device"):
        disk.setattr(LockedLines, "append", full)
        run.train()
    assert entry_of(budget) == (3, STEPS, True)
    assert read_journal(tmp_path / "run" / "resume" / "ledger.jsonl") == 4
    again = resume(tmp_path / "run")  # what the journal counts, the budget counts
    assert entry_of(budget) == (4, STEPS, True) and again.loop.ledger.steps == 4
    outcome = again.train()
    assert (outcome.steps, outcome.updates) == (STEPS, STEPS - 1) and entry_of(budget) == (STEPS, STEPS, False)


def test_a_copy_of_the_whole_folder_knows_of_later_steps_by_the_budget(tmp_path: Path, budget: gc.Budget) -> None:
    with pytest.raises(RunInterrupted):
        start(request(budget), tmp_path / "run").train(StopAfter(2))
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with pytest.raises(RunInterrupted):
        resume(tmp_path / "run").train(StopAfter(6))
    run = resume(tmp_path / "copy")
    assert run.loop.ledger.steps == 6 and run.loop.progress.lost == ((3, 6),)
    assert run.train().steps == STEPS and entry_of(budget) == (STEPS, STEPS, False)


def test_a_training_that_was_closed_stops_and_goes_on_if_it_still_fits(tmp_path: Path, budget: gc.Budget) -> None:
    def close() -> None:
        assert command(["budget", "close", "--file", str(budget.path), "--entry", budget.entries[0].name]) == 0

    run = start(request(budget), tmp_path / "run", checkpoint_seconds=SELDOM)
    with pytest.raises(RunFailed, match="3 of 8 steps charged and was closed"):
        run.train(At(3, close))
    assert entry_of(budget) == (3, STEPS, False)
    run = resume(tmp_path / "run")
    assert entry_of(budget)[2]
    run.folder.close()
    close()
    left = gc.Mechanism(dataset_size=1437, expected_batch_size=1437, steps=1, noise_multiplier=3.0, sampling="full-batch")
    budget.add(left)
    with pytest.raises(BudgetExceeded):
        resume(tmp_path / "run")


def test_another_budget_is_no_place_to_go_on(tmp_path: Path, budget: gc.Budget) -> None:
    with pytest.raises(RunInterrupted):
        start(request(budget), tmp_path / "run").train(StopAfter(3))
    kept = budget.path.read_bytes()
    budget.path.unlink()
    with pytest.raises(ValueError, match=r"isn't there, or is empty: .* Put it back"):
        resume(tmp_path / "run")
    gc.Budget(budget.path, epsilon=3.05, delta=1e-5)
    with pytest.raises(ConfigError, match="has no entry"):
        resume(tmp_path / "run")
    with pytest.raises(ConfigError, match="differs from the run to be resumed"):
        resume(tmp_path / "run", {"budget": str(tmp_path / "other")})
    budget.path.write_bytes(kept)
    assert resume(tmp_path / "run").train().steps == STEPS


def test_a_run_that_does_not_begin_sets_nothing_aside(tmp_path: Path, budget: gc.Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="pretrain_steps=5"):
        start(request(budget, pretrain_steps=5), tmp_path / "run")
    with monkeypatch.context() as failing, pytest.raises(RunFailed, match="no space left"):
        failing.setattr("groupclip.run.train.write_atomically", lambda *_: _no_space())
        start(request(budget), tmp_path / "run")
    assert all(not entry.is_open and entry.taken == 0 for entry in budget.entries) and budget.committed().epsilon == 0
    with pytest.raises(ValueError, match="figures of different neighbours"):
        start(request(budget, adjacency="zero-out"), tmp_path / "other")
    with pytest.raises(ConfigError, match="means nothing without privacy"):
        start({**request(budget), "epsilon": None, "clipping": None, "delta": None, "no_privacy": True}, tmp_path / "plain")


def _no_space() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_pretraining_leaves_the_steps_set_aside(tmp_path: Path, budget: gc.Budget) -> None:
    run = start(request(budget, model="vit-micro", pretrain_steps=1), tmp_path / "run")
    run._pretrain(Nobody())
    assert entry_of(budget) == (0, STEPS, True) and run.trainer.engine.ledger is not None
    run.trainer.engine.ledger.record("groupclip")
    assert entry_of(budget)[0] == 1
    run.folder.close()


def test_the_command_charges_and_closes(tmp_path: Path, budget: gc.Budget, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--task", "digits", "--model", "linear", "--steps", "4", "--epsilon", "2", "--out", str(tmp_path / "run"), "--quiet"]
    assert command(["train", *asked, "--budget", str(budget.path)]) == 0
    assert entry_of(budget) == (4, 4, False)
    capsys.readouterr()
    assert command(["budget", "close", "--file", str(budget.path), "--entry", "nothing"]) == 2
    assert "has no training 'nothing'" in capsys.readouterr().err
    assert command(["train", *asked[:-2], str(tmp_path / "next"), "--budget", str(budget.path), "--epsilon", "3"]) == 1
    assert "allows epsilon=3.05" in capsys.readouterr().err


def test_a_budget_that_was_never_begun_is_told_by_the_command_that_begins_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run's own --epsilon and --delta begin none."""
    asked = ["--task", "digits", "--model", "linear", "--epsilon", "2", "--out", str(tmp_path / "run"), "--quiet"]
    assert command(["train", *asked, "--budget", str(tmp_path / "nope")]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"nope isn't there: begin a budget by groupclip budget new --file {tmp_path / 'nope'} --epsilon E" in told
    assert not (tmp_path / "run").exists() and not (tmp_path / "nope").exists()


def test_an_edited_budget_is_met_before_the_next_step(tmp_path: Path, budget: gc.Budget) -> None:
    def spoil() -> None:
        with budget.path.open("a") as file:
            file.write("nonsense\n")

    with pytest.raises(RunFailed, match="is damaged at the line 'nonsense'") as failed:
        start(request(budget), tmp_path / "run").train(At(2, spoil))
    assert isinstance(failed.value.__cause__, PrivacyViolation)
