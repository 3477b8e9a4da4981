"""Ctrl-C and SIGTERM: the first asks the run to finish its step and keep it, the second ends it at once."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any

from groupclip_command import interrupt

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopOnSignal:
    """Catches signals while entered; ``received`` is the number of the signal that came, or None."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopOnSignal:
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            interrupt(number, frame)
        self.received = number
        # not through a buffered stream: the handler may have interrupted a write to it
        os.write(2, b"\nfinishing the step, then writing a checkpoint; again to stop at once\n")

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as shells have it: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + (self.received or signal.SIGINT)
