"""The folder of a run: what lies where, who may write, and the lock that keeps a second process out.

OUT/release/        weights, privacy.json, model card, the model's settings: to be published
OUT/not-private/    the same of a run without privacy, which has no release/, and OUT/NOT-PRIVATE.txt beside it
OUT/report.html     what happened, with plots; as public as the release
OUT/metrics.jsonl   one row a step, made from noisy quantities and held-out data
OUT/run.yaml        every setting: ``groupclip train --config OUT/run.yaml --out OTHER`` does it again
OUT/resume/         checkpoint and journal; secret (0700), deleted when the run has ended
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .errors import ConfigError
from .files import is_file_of


class RunFolder:
    """Paths of one run; :func:`new_folder` or :func:`existing_folder` makes it. Holds a lock.

    Args:
        root: of the run.
        held: this process keeps the files. Of several that train together, one does.
    """

    def __init__(self, root: Path, *, held: bool = True) -> None:
        self.root = root
        self.release = root / "release"
        self.not_private = root / "not-private"
        self.mark = root / "NOT-PRIVATE.txt"
        self.report = root / "report.html"
        self.metrics = root / "metrics.jsonl"
        self.config = root / "run.yaml"
        self.resume = root / "resume"
        self.checkpoint = self.resume / "checkpoint.safetensors"
        self.journal = self.resume / "ledger.jsonl"
        self._lock = _Lock(root / ".lock") if held else None
        self._resume_lock: _Lock | None = None
        self.closed = False

    def resume_command(self) -> str:
        return f"groupclip train --resume {self.root}"

    def forget_resume(self) -> None:
        """Delete the secret part. The journal goes last: without a checkpoint it can't be gone on from."""
        self.checkpoint.unlink(missing_ok=True)
        shutil.rmtree(self.resume)

    def hold_resume(self) -> None:
        """Lock the folder of the journal too: whoever deletes ``.lock``, which looks stale, lets no second process in.

        Raises:
            ConfigError: another process holds it.
            OSError: there is no such folder.
        """
        self._resume_lock = _Lock(self.resume)

    def close(self) -> None:
        """Give the locks up. Nothing may be trained here after that, until the folder is locked again."""
        self.closed = True
        if self._resume_lock is not None:
            self._resume_lock.release()
        if self._lock is not None:
            self._lock.release()


def refuse_used(root: Path) -> None:
    """Raise ConfigError if ``root`` can't become the folder of a new run. Touches nothing."""
    if root.is_dir():
        if not _is_empty(root):
            hint = f"go on with it by --resume {root}, or " if (root / "resume").is_dir() else ""
            raise ConfigError(f"the folder {root} isn't empty: {hint}choose another --out; nothing in it was changed")
    elif root.exists() or root.is_symlink():
        raise ConfigError(f"{root} is a file, not a folder: choose another --out")
    ancestor = next(p for p in [root, *root.absolute().parents] if p.exists())
    if not ancestor.is_dir() or not os.access(ancestor, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{root} can't be written: {ancestor} is no folder that you may write in; choose another --out"
        )


def new_folder(root: Path) -> RunFolder:
    """Create and lock the folder of a new run. ConfigError if it isn't empty or can't be written."""
    refuse_used(root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        folder = RunFolder(root)
    except OSError as error:
        raise ConfigError(f"{root} can't be written ({error.strerror}): choose another --out") from error
    if not _is_empty(root):  # another process was faster
        folder.close()
        refuse_used(root)
    folder.resume.mkdir(mode=0o700)
    _hold_resume(folder)
    return folder


def existing_folder(root: Path) -> RunFolder:
    """Lock the folder of a run that stopped. ConfigError if there is none, or nothing to go on from."""
    if not root.is_dir():
        raise ConfigError(f"there is no folder {root} to resume; start the run with --out {root}")
    if not (root / "resume" / "checkpoint.safetensors").is_file():
        if (root / "release").is_dir():
            raise ConfigError(
                f"the run in {root} is finished: its release is in {root / 'release'}; nothing is left to resume"
            )
        if (root / "NOT-PRIVATE.txt").is_file():
            raise ConfigError(f"the run in {root} is one without privacy, which can't go on: start it again")
        raise ConfigError(f"{root} holds no checkpoint (resume/checkpoint.safetensors): start a run with another --out")
    try:
        folder = RunFolder(root)
        _hold_resume(folder)
        return folder
    except OSError as error:
        raise ConfigError(f"{root} can't be written ({error.strerror}): it must be, to go on") from error


def _hold_resume(folder: RunFolder) -> None:
    try:
        folder.hold_resume()
    except BaseException:
        folder.close()
        raise


class _Lock:
    """An flock on a file, which it makes, or on a folder; the system drops it when the process ends, however that happens.

    POSIX only. A file system that can't lock folders (some network ones) leaves them without; there the files do it.
    """

    def __init__(self, path: Path) -> None:
        import fcntl

        self._path, self._folder = path, path.is_dir()
        self._descriptor = os.open(path, os.O_RDONLY if self._folder else os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not is_file_of(path, self._descriptor):
                raise BlockingIOError  # its holder was just removing it
        except BlockingIOError:
            os.close(self._descriptor)
            raise ConfigError(
                f"another process is training in {path.parent}: wait for it, or choose another --out"
            ) from None
        except OSError:
            if not self._folder:
                os.close(self._descriptor)
                raise

    def release(self) -> None:
        # before the lock is dropped, so that nobody's new file is removed
        if not self._folder and is_file_of(self._path, self._descriptor):
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def _is_empty(root: Path) -> bool:
    return all(entry.name == ".lock" for entry in root.iterdir())
