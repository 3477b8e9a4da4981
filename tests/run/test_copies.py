"""Copies and second hands: an old resume/ put back, one Run trained twice, locks deleted; what was released stays charged."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from groupclip.errors import PrivacyViolation
from groupclip.run import ConfigError, RunFailed, RunInterrupted, resume, start
from groupclip.run.journal import Journal, read_journal
from small_runs import REQUEST, SELDOM, STEPS, At, StopAfter, contents, stopped_run

pytestmark = pytest.mark.usefixtures("outlines")


def steps_of(out: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]


def put_back(copy: Path, out: Path) -> None:
    shutil.rmtree(out / "resume", ignore_errors=True)
    shutil.copytree(copy, out / "resume")


@pytest.fixture
def rolled_back(tmp_path: Path) -> Path:
    """After step 5 of 8, with the resume/ of step 2."""
    out = tmp_path / "run"
    stopped_run(out, 2)
    shutil.copytree(out / "resume", tmp_path / "copy")
    with pytest.raises(RunInterrupted):
        resume(out).train(StopAfter(5))
    put_back(tmp_path / "copy", out)
    return out


def test_steps_after_an_older_copy_stay_charged(rolled_back: Path) -> None:
    run = resume(rolled_back)
    assert run.loop.ledger.steps == 5
    outcome = run.train()
    assert steps_of(rolled_back) == list(range(1, STEPS + 1))  # each released once
    assert (outcome.steps, outcome.updates) == (STEPS, STEPS - 3)
    assert run.loop.progress.lost == ((3, 5),)
    assert "steps 3 to 5 were lost" in outcome.report.read_text()


def test_a_row_that_was_cut_off_was_seen_too(rolled_back: Path) -> None:
    with (rolled_back / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "upd')
    run = resume(rolled_back)
    assert run.loop.ledger.steps == 6
    run.folder.close()


@pytest.mark.parametrize("rows", [[0, 1, 2, 1], [0, 0], [2, 1], [0, 1, 2, 3, 4, 40]], ids=str)
def test_rows_that_one_run_cannot_have_written(rolled_back: Path, rows: list[int]) -> None:
    lines = [json.loads(line) for line in (rolled_back / "metrics.jsonl").read_text().splitlines()]
    told = [{**lines[0], "step": row + 1} for row in rows]
    (rolled_back / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in told))
    before = contents(rolled_back)
    with pytest.raises(
        PrivacyViolation, match=r"metrics\.jsonl isn't the record of one run of 8 steps.*count both runs"
    ):
        resume(rolled_back)
    assert contents(rolled_back) == before


def test_an_older_copy_does_not_replace_a_release(tmp_path: Path) -> None:
    out = tmp_path / "run"
    stopped_run(out, 2)
    shutil.copytree(out / "resume", tmp_path / "copy")
    resume(out).train()
    put_back(tmp_path / "copy", out)
    before = contents(out)
    with pytest.raises(ConfigError, match=r"is finished, its release is in .*is an older copy, of step 2"):
        resume(out)
    assert contents(out) == before


def test_a_run_is_trained_once(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = start(REQUEST, out, checkpoint_seconds=SELDOM)
    with pytest.raises(RunInterrupted):
        run.train(StopAfter(2))
    before = contents(out)
    with pytest.raises(RunFailed, match=r"trained already.*what this object counts may be too low.*run\.resume"):
        run.train()
    assert contents(out) == before
    again = resume(out)
    with pytest.raises(RunFailed, match="this Run was trained already, is being trained"):
        again.train(At(4, lambda: again.train() and None))
    assert resume(out).train().steps == STEPS
    with pytest.raises(RunFailed, match="trained already"):
        again.train()


def test_a_run_whose_folder_was_given_up(tmp_path: Path) -> None:
    stopped_run(tmp_path / "run", 2)
    run = resume(tmp_path / "run")
    run.folder.close()
    with pytest.raises(RunFailed, match="gave up its folder"):
        run.train()


def test_a_deleted_lock_lets_nobody_in(tmp_path: Path) -> None:
    out = tmp_path / "run"

    def second() -> None:
        (out / ".lock").unlink()
        with pytest.raises(ConfigError, match="another process is training"):
            resume(out)

    outcome = start(REQUEST, out, checkpoint_seconds=SELDOM).train(At(3, second))
    assert steps_of(out) == list(range(1, outcome.steps + 1))
    assert not (out / ".lock").exists()


def test_the_lock_of_another_is_left(tmp_path: Path) -> None:
    out = tmp_path / "run"
    stopped_run(out, 2)
    run = resume(out)
    (out / ".lock").unlink()
    (out / ".lock").write_text("")
    run.folder.close()
    assert (out / ".lock").exists()


def test_a_replaced_journal_ends_the_run(tmp_path: Path) -> None:
    """Both locks defeated: the whole of resume/ is put back from a copy while a run trains, and gone on with."""
    out = tmp_path / "run"
    stopped_run(out, 2)
    shutil.copytree(out / "resume", tmp_path / "copy")

    def second() -> None:
        (out / ".lock").unlink()
        put_back(tmp_path / "copy", out)
        with pytest.raises(RunInterrupted):
            resume(out, checkpoint_seconds=SELDOM).train(StopAfter(6))

    first = resume(out, checkpoint_seconds=SELDOM)
    with pytest.raises(
        RunFailed, match=r"ledger\.jsonl isn't the file any more that this run writes.*Step 5 wasn't taken"
    ):
        first.train(At(4, second))
    assert steps_of(out) == [1, 2, 3, 4, 5, 6]
    assert resume(out).loop.ledger.steps == 6


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_step_isnt_charged_to_a_file_that_nobody_reads(tmp_path: Path, how: str) -> None:
    path = tmp_path / "ledger.jsonl"
    journal = Journal(path, charged=0)
    assert journal.charge() == 1
    if how == "deleted":
        path.unlink()
    else:
        os.replace(shutil.copy(path, tmp_path / "copy"), path)
    with pytest.raises(RunFailed, match="Step 2 wasn't taken"):
        journal.charge()
    journal.close()


def test_a_run_that_was_overtaken_before_it_began(tmp_path: Path) -> None:
    """Where folders can't be locked, the journal tells."""
    out = tmp_path / "run"
    stopped_run(out, 2)
    run = resume(out)
    (out / "resume" / "ledger.jsonl").write_text('{"charged": 4}\n')
    with pytest.raises(PrivacyViolation, match="counts 4 steps, this run 2"):
        run.train()
    assert read_journal(out / "resume" / "ledger.jsonl") == 4
