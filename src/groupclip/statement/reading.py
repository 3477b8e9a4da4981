"""Read a privacy record from its file, or from the folder of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RECORD = "privacy.json"


def record_at(path: Path) -> Path:
    """Return the file of a record: ``path`` itself, or that in a run's folder, or in its release."""
    if not path.is_dir():
        return path
    return path / RECORD if (path / RECORD).is_file() else path / "release" / RECORD


def read_record(path: Path) -> dict[str, Any]:
    """Read the file of a record.

    Raises:
        OSError: it isn't there, or can't be read.
        ValueError: it holds no JSON object, or a name twice in one: a reader would see one value, and a program the other.
    """
    found = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    if not isinstance(found, dict):
        raise ValueError(f"{path} is no privacy record: it holds no JSON object")
    return found


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"the record can't be read: {', '.join(map(repr, twice))} is there more than once")
    return found
