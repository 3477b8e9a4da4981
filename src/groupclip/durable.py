"""Writing files so that a crash at any moment leaves the old content or the new one, never a part of it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from .errors import PrivacyViolation

PUBLIC = 0o644  # less what the umask takes
SECRET = 0o600


def write_atomically(path: Path, content: bytes | str, mode: int = PUBLIC) -> None:
    """Replace ``path`` by ``content``: temporary file beside it, fsync, rename, fsync of the folder.

    Raises:
        OSError: as the system says; ``path`` is then what it was, and no temporary file is left.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def begin_file(path: Path, content: str, mode: int) -> None:
    """Write ``content`` where there is no file, or an empty one. Of several that begin it at once, one does; the others leave it.

    Raises:
        OSError: as the system says; there is nothing then that wasn't there before.
    """
    import fcntl  # here: the package is imported on systems that have none

    path = Path(os.path.realpath(path))  # what a link names, and not the link
    while True:
        try:
            descriptor, made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode), True
        except FileExistsError:
            descriptor, made = os.open(path, os.O_RDWR), False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not is_file_of(path, descriptor):
                continue  # another one began it meanwhile
            if os.fstat(descriptor).st_size == 0:
                try:
                    write_atomically(path, content, mode)
                except BaseException:
                    if made and is_file_of(path, descriptor):
                        path.unlink()
                    raise
            return
        finally:
            os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make renames and new names in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Lines:
    """A file that grows by whole lines. ``durable``: each is on the disk before :meth:`append` returns."""

    def __init__(self, path: Path, *, mode: int, durable: bool) -> None:
        self.path = path
        self._durable = durable
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode)

    def append(self, line: str) -> None:
        """Add one line (without its end). Raises OSError; then a part of the line may be in the file."""
        _write_all(self._descriptor, (line + "\n").encode())
        if self._durable:
            os.fsync(self._descriptor)

    def in_place(self) -> bool:
        """Return whether what is written goes to the file that others read under this name."""
        return is_file_of(self.path, self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def is_file_of(path: Path, descriptor: int) -> bool:
    """Return whether ``path`` still names what was opened: not after it was deleted, replaced or moved."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]  # a full disk or a signal may cut a write short


class LockedLines:
    """A file of lines that several processes read and add to, in turn. Each line is on the disk before :meth:`append` returns.

    Raises:
        OSError: the file can't be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        self._begin()
        sync_folder(path.parent)

    def _begin(self) -> None:
        self._read = self._given = 0  # whole lines: bytes and number
        self._threads = threading.RLock()
        self._process = os.getpid()

    @contextlib.contextmanager
    def locked(self) -> Iterator[tuple[int, list[bytes]]]:
        """Hold the file alone, and give the whole lines that are new since the last time. Changes nothing in it.

        In a process that was forked since, all lines are new: another thread may have been reading when it was.

        Yields:
            The number of the first new line, from 0, and the lines.

        Raises:
            PrivacyViolation: the file was deleted, replaced or made shorter.
        """
        import fcntl  # here: the package is imported on systems that have none

        with _opening:
            if os.getpid() != self._process:  # the lock is of what was opened, which parent and child have in common
                self._open_again()
        with self._threads:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)  # the system lets go of it if the process dies
            try:
                size = os.fstat(self._descriptor).st_size
                if not is_file_of(self.path, self._descriptor) or size < self._read:
                    raise self._gone()
                data = os.pread(self._descriptor, size - self._read, self._read)
                *lines, cut = data.split(b"\n")
                first, self._given = self._given, self._given + len(lines)
                self._read = size - len(cut)
                yield first, lines
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _open_again(self) -> None:
        if not is_file_of(self.path, self._descriptor):
            raise self._gone()
        inherited, self._descriptor = self._descriptor, os.open(self.path, os.O_RDWR | os.O_APPEND)
        os.close(inherited)
        self._begin()

    def _gone(self) -> PrivacyViolation:
        return PrivacyViolation(
            f"{self.path} isn't the file any more that was opened: it was deleted, replaced or made shorter. "
            "Put it back and open it again; what was added meanwhile must not be lost"
        )

    def append(self, line: str) -> None:
        """Add one line, inside :meth:`locked`, in the place of one that was cut off. Raises OSError; then others see nothing of it.

        Call it only for a file whose lines are known to be one's own: what isn't a whole line at its end is lost.
        """
        data = (line + "\n").encode()
        if os.fstat(self._descriptor).st_size > self._read:
            os.ftruncate(self._descriptor, self._read)
        _write_all(self._descriptor, data)
        os.fsync(self._descriptor)
        self._read += len(data)
        self._given += 1

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._descriptor)


_opening = threading.Lock()


def _free() -> None:
    """Let a child begin with a lock that no thread of its parent holds."""
    global _opening
    _opening = threading.Lock()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_free)
