"""Words for what a pass without numbers can't do: where it stopped, and never that the model is wrong."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from ..errors import GroupClipError, UnsupportedOperation

#: In what torch says of a tensor without numbers, when it looked for them.
_NO_NUMBERS = re.compile(r"\bmeta\b|unallocated storage|not allocated yet")


def needs(what: str) -> str:
    """Explain an error of a pass that needs a number which it hasn't."""
    return _words(_place(_callers()), what)


def _words(place: str, what: str) -> str:
    return (
        f"{place} needs {what}: what is computed next depends on the data, so the memory of a step can't be told without "
        "running it. Plan a copy without that branch, or measure instead (groupclip.memory.measure)"
    )


def _callers() -> Iterator[FrameType]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def asking_module() -> str:
    """Return the name of the module, not of groupclip, whose code is running."""
    names = (str(frame.f_globals.get("__name__", "")) for frame in _callers())
    return next((name for name in names if not name.startswith("groupclip.")), "")


def _place(frames: Iterable[FrameType]) -> str:
    """Find, in frames with the innermost first, the line of code that isn't torch's or ours."""
    for frame in frames:
        name = str(frame.f_globals.get("__name__", ""))
        ours = name.partition(".")[0] in ("torch", "contextlib", "groupclip")
        if not ours or name.startswith(("groupclip.models.", "groupclip.tasks.")):
            return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_qualname})"
    return "the pass"


@contextmanager
def without_numbers() -> Iterator[None]:
    """Explain torch's errors inside as those of a pass without numbers.

    Raises:
        UnsupportedOperation: something looked for numbers, or has no implementation without.
    """
    try:
        yield
    except GroupClipError:
        raise
    except (RuntimeError, NotImplementedError) as error:
        if isinstance(error, NotImplementedError) or _NO_NUMBERS.search(str(error)):
            frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][:0:-1]
            said = str(error).partition("\n")[0]
            raise UnsupportedOperation(_words(_place(frames), f"numbers ({said})")) from error
        error.add_note(
            "This was raised in a pass without numbers. If the model runs on this batch as it is, the pass can't follow it: "
            "measure instead (groupclip.memory.measure)"
        )
        raise


__all__ = ["asking_module", "needs", "without_numbers"]
