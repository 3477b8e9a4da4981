"""What the engine warns of for the sake of its statement says nothing of an audit, which makes none."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

_OF_THE_STATEMENT = ("on a batch that groupclip didn't draw", "these weights were trained before")


@contextlib.contextmanager
def nothing_stated() -> Iterator[None]:
    """Silence, inside, this thread's warnings that groupclip didn't draw the batches or that weights were trained before."""
    log, thread = logging.getLogger("groupclip"), threading.get_ident()

    def keep(record: logging.LogRecord) -> bool:
        return record.thread != thread or not any(text in str(record.msg) for text in _OF_THE_STATEMENT)

    log.addFilter(keep)
    try:
        yield
    finally:
        log.removeFilter(keep)
