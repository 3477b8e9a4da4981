"""The file of a budget: lines that are read under a lock, and believed only where they follow from those before."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from groupclip.durable import SECRET, LockedLines
from groupclip.errors import PrivacyViolation
from groupclip.privacy import entries
from groupclip.privacy.entries import Entry

_VERSION = 1


class BudgetFile:
    """What the lines of a budget's file say, as far as they were read.

    Raises:
        OSError: the file can't be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = LockedLines(path, mode=SECRET)
        self._head: dict[str, Any] | None = None
        self._unread: list[bytes] = []
        self._taken = 0  # number of lines
        self._entries: dict[str, Entry] = {}

    @property
    def _facts(self) -> dict[str, Any]:
        assert self._head is not None
        return self._head

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lines.locked() as (first, news):
            if not first:
                self._unread, self._taken, self._entries = [], 0, {}
            self._unread += news
            while self._unread:  # a damaged line stays, and is met again
                self._take(self._unread[0])
                del self._unread[0]
            yield

    def _begin(self, facts: Mapping[str, Any]) -> None:
        self._write({"groupclip_budget": _VERSION, **facts})

    def _write(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, allow_nan=False)
        self._lines.append(text)
        self._take(text.encode())

    def _take(self, line: bytes) -> None:
        """Take in a line of the file."""
        try:
            told = json.loads(line)
            if not self._taken:
                if told["groupclip_budget"] != _VERSION:
                    raise ValueError("another version")
                self._head = {name: told[name] for name in ("epsilon", "delta", "adjacency", "unit")}
                if not math.isfinite(self._head["epsilon"] + self._head["delta"]):
                    raise ValueError("not finite")
            else:
                entries.take(self._entries, told)
            self._taken += 1
        except (ValueError, KeyError, TypeError) as error:
            raise PrivacyViolation(
                f"{self.path} is damaged at the line {line[:80].decode(errors='replace')!r}: what was spent can't be told. Restore "
                "it, or publish nothing more of these data"
            ) from error
