"""Full disks, crashes in the middle of a write, folders that can't be used, and two processes at one folder."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from groupclip.run import ConfigError, RunFailed, resume, start
from groupclip.run.files import Lines, write_atomically
from groupclip.run.folder import new_folder
from small_runs import REQUEST, SELDOM, STEPS, At, contents, stopped_run


class FullDisk:
    """From :meth:`fill` on, nothing more is written: half of the next write, then ENOSPC."""

    def __init__(self, monkeypatch) -> None:
        self._full, self._write, self._monkeypatch = False, os.write, monkeypatch
        monkeypatch.setattr("groupclip.durable.os.write", self._limited)

    def fill(self) -> None:
        self._full = True

    def free(self) -> None:
        self._monkeypatch.undo()

    def _limited(self, descriptor, data):
        if not self._full:
            return self._write(descriptor, data)
        if len(data) > 1:
            return self._write(descriptor, bytes(data[: len(data) // 2]))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_ends_the_run_and_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    out = tmp_path / "run"
    stopped_run(out, 2)
    checkpoint = out / "resume" / "checkpoint.safetensors"
    before = checkpoint.read_bytes()
    disk = FullDisk(monkeypatch)
    with pytest.raises(RunFailed, match=r"no space left on the disk while charging a step.*Free some space.*--resume"):
        resume(out, checkpoint_seconds=SELDOM).train(At(5, disk.fill))
    assert checkpoint.read_bytes() == before
    assert {p.name for p in checkpoint.parent.iterdir()} == {"checkpoint.safetensors", "ledger.jsonl"}
    disk.free()
    run = resume(out)
    # three steps whose updates are lost, and the one whose charge was cut off in the middle of its line
    assert run.loop.progress.lost == ((3, 6),)
    outcome = run.train()
    assert (outcome.steps, outcome.updates) == (STEPS, STEPS - 4)


def test_a_charge_that_the_disk_did_not_take_draws_no_batch(tmp_path, monkeypatch):
    """Not a byte of the line was written, so the step is taken when the run goes on, in this process: no batch was left out."""
    out = tmp_path / "run"
    stopped_run(out, 2)
    write = os.write

    def full(descriptor, data):
        if bytes(data) == b'{"charged": 6}\n':
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr("groupclip.durable.os.write", full)
    with pytest.raises(RunFailed, match="no space left on the disk while charging a step"):
        resume(out).train()
    monkeypatch.undo()
    run = resume(out)
    assert run.loop.progress.lost == ()
    outcome = run.train()
    assert (outcome.steps, outcome.updates) == (STEPS, STEPS)


@pytest.mark.parametrize("written", ["run.yaml", "checkpoint.safetensors"])
def test_a_full_disk_at_the_very_beginning(tmp_path, monkeypatch, written):
    out = tmp_path / "run"
    disk = FullDisk(monkeypatch)
    write = write_atomically

    def fill_at(path, *content):
        if path.name == written:
            disk.fill()
        write(path, *content)

    monkeypatch.setattr("groupclip.run.train.write_atomically", fill_at)
    monkeypatch.setattr("groupclip.run.checkpoint.write_atomically", fill_at)
    with pytest.raises(RunFailed, match=r"no space left on the disk while beginning the run.*start it again"):
        start(REQUEST, out)
    assert list(out.iterdir()) == []
    disk.free()
    assert start(REQUEST, out).train().steps == STEPS


def test_a_limit_of_the_system_on_the_size_of_files(tmp_path):
    out = tmp_path / "run"
    stopped_run(out, STEPS - 1)
    limit = max(p.stat().st_size for p in (out / "resume").iterdir()) + 2000  # enough for a checkpoint, not for a report

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [sys.executable, "-m", "groupclip.cli", "train", "--resume", str(out), "--quiet"]
    failed = subprocess.run(command, preexec_fn=limited, capture_output=True, text=True)
    assert failed.returncode == 1
    assert "no space left on the disk while writing the results" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not (out / "report.html").exists()
    outcome = resume(out).train()
    assert (outcome.steps, outcome.updates) == (STEPS, STEPS)


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_failed_write_leaves_the_old_content(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    write_atomically(path, "old")

    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(f"groupclip.durable.os.{call}", fail)
    with pytest.raises(OSError, match="Input/output error"):
        write_atomically(path, "new")
    assert contents(tmp_path) == {"file": b"old"}


def test_durable_lines_are_synced_one_by_one(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("groupclip.durable.os.fsync", synced.append)
    lines = Lines(tmp_path / "lines", mode=0o600, durable=True)
    for count in (1, 2, 3):
        lines.append("line")
        assert len(synced) == count
    lines.close()


def test_a_used_folder_is_refused_and_nothing_in_it_is_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"isn't empty: choose another --out; nothing in it was changed"):
        start(REQUEST, tmp_path)
    assert contents(tmp_path) == {"thesis.tex": b"years of work"}


def test_a_stopped_run_is_not_overwritten(tmp_path):
    out = tmp_path / "run"
    stopped_run(out, 1)
    before = contents(out)
    with pytest.raises(ConfigError, match="isn't empty: go on with it by --resume"):
        start(REQUEST, out)
    assert contents(out) == before


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/groupclip", "/dev/null/run"])
def test_a_place_that_cannot_be_a_folder_is_refused(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="choose another --out"):
        start(REQUEST, tmp_path / place)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="no folder that you may write in"):
        start(REQUEST, tmp_path / "run")


def test_a_second_process_is_kept_out(tmp_path):
    out = tmp_path / "run"
    stopped_run(out, 1)
    run = resume(out)
    before = contents(out)
    with pytest.raises(ConfigError, match=r"another process is training in .*run"):
        resume(out)
    assert contents(out) == before
    assert run.train().steps == STEPS


def test_the_lock_ends_with_its_process(tmp_path):
    code = "import sys, os; from pathlib import Path; from groupclip.run.folder import new_folder; " \
        "folder = new_folder(Path(sys.argv[1])); os._exit(9)"  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")]).returncode == 9
    (tmp_path / "run" / "resume").rmdir()
    folder = new_folder(tmp_path / "run")
    assert folder.root == Path(tmp_path / "run")
    folder.close()
    assert not (tmp_path / "run" / ".lock").exists()


def test_wrong_settings_write_nothing(tmp_path):
    out = tmp_path / "run"
    for wrong in ({"clipping": "unifrom:2"}, {"model": "vit-tny"}, {"batch_size": 10**6}, {"clip": "abady"}):
        with pytest.raises(ValueError, match=next(iter(map(str, wrong.values())))):
            start({**REQUEST, **wrong}, out)
        assert not out.exists()
