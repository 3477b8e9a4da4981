"""What a person is told when the file system fails, beside the ways to write that a crash can't break."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from ..durable import PUBLIC as PUBLIC
from ..durable import SECRET as SECRET
from ..durable import Lines as Lines
from ..durable import is_file_of as is_file_of
from ..durable import sync_folder as sync_folder
from ..durable import write_atomically as write_atomically
from .errors import RunFailed

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
