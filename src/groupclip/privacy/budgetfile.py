"""The file of a budget: lines that are read under a lock, and believed only where they follow from those before."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from groupclip.arguments import positive
from groupclip.durable import SECRET, LockedLines, begin_file
from groupclip.errors import PrivacyViolation
from groupclip.privacy import entries
from groupclip.privacy.entries import Entry
from groupclip.privacy.mechanism import UNITS
from groupclip.privacy.sampled_step import ADJACENCIES
from groupclip.privacy.spent import checked_delta

_VERSION = 1


def is_begun(path: Path) -> bool:
    """Return whether there is a file that may be a budget's: an empty one is what a crash left of the moment it was begun."""
    return path.exists() and not (path.is_file() and path.stat().st_size == 0)


def begin(path: Path, facts: Mapping[str, Any]) -> None:
    """Write the file of a new budget, unless another process was faster. OSError as the system says."""
    begin_file(path, json.dumps({"groupclip_budget": _VERSION, **facts}, allow_nan=False) + "\n", SECRET)


class BudgetFile:
    """What the lines of a budget's file say, as far as they were read.

    Raises:
        OSError: the file can't be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = LockedLines(path)
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
            if self._head is None:
                raise PrivacyViolation(f"{self.path} is no budget, or is damaged: its first line has no end. {_RESTORE}")
            yield

    def _write(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, allow_nan=False)
        self._lines.append(text)
        self._take(text.encode())

    def _take(self, line: bytes) -> None:
        """Take in a line of the file."""
        try:
            told = json.loads(line)
            if not self._taken:
                self._head = _head(told)
            else:
                entries.take(self._entries, told, adjacency=self._facts["adjacency"], unit=self._facts["unit"])
            self._taken += 1
        except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError, PrivacyViolation) as error:
            raise PrivacyViolation(
                f"{self.path} {'is' if self._taken else 'is no budget, or is'} damaged at the line "
                f"{line[:80].decode(errors='replace')!r} (number {self._taken + 1}: {error}): what was spent can't be told. "
                f"{_RESTORE}"
            ) from error


_RESTORE = "Restore it, or publish nothing more of these data"


def _head(told: Mapping[str, Any]) -> dict[str, Any]:
    """Read the first line. Raises ValueError, KeyError or TypeError if it isn't one."""
    if told["groupclip_budget"] != _VERSION:
        raise ValueError("another version")
    if set(told) != {"groupclip_budget", "epsilon", "delta", "adjacency", "unit"}:
        raise ValueError(f"its facts are {sorted(told)}")
    if told["adjacency"] not in ADJACENCIES or told["unit"] not in UNITS:
        raise ValueError(f"adjacency={told['adjacency']!r} or unit={told['unit']!r} is unknown")
    return {
        "epsilon": positive("epsilon", told["epsilon"]),
        "delta": checked_delta(told["delta"]),
        "adjacency": told["adjacency"],
        "unit": told["unit"],
    }
