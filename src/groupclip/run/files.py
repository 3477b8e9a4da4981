"""Writing files so that a crash at any moment leaves the old content or the new one, never a part of it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from .errors import RunFailed

PUBLIC = 0o644  # less what the umask takes
SECRET = 0o600
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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


@contextlib.contextmanager
def said_plainly(doing: str, how_to_go_on: str) -> Iterator[None]:
    """Turn an error of the file system into :class:`RunFailed` with a message for a person."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        if error.errno in _FULL:
            raise RunFailed(
                f"no space left on the disk while {doing}{where}: nothing that was complete before is lost. "
                f"Free some space, then {how_to_go_on}"
            ) from error
        raise RunFailed(
            f"{error.strerror or error} while {doing}{where}. Put that right, then {how_to_go_on}"
        ) from error


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]  # a full disk or a signal may cut a write short
