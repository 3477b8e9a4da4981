"""Read back what a finished run publishes: its release, the rows of its steps, and its settings. No record is looked at."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..statement.reading import RECORD, read_record
from ..statement.verified import differences
from .config import RunConfig, checked_request, read_yaml
from .errors import ConfigError
from .metrics import read_rows


@dataclass(frozen=True, eq=False)
class PublishedRun:
    """Holds the files of one run.

    config: of ``run.yaml``. record: ``release/privacy.json``. facts: ``release/config.json``. rows: of ``metrics.jsonl``.
    """

    name: str
    config: RunConfig
    record: Mapping[str, Any]
    facts: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]

    @property
    def accuracies(self) -> list[tuple[int, float]]:
        """(step, share of held-out records that were right), without the steps whose updates a crash lost."""
        kept: list[tuple[int, float]] = []
        updates = float("inf")
        for row in reversed(self.rows):
            if row["updates"] < updates:
                updates = row["updates"]
                if "test_accuracy" in row:
                    kept.append((row["step"], row["test_accuracy"]))
        return kept[::-1]


def read_published(folder: Path) -> PublishedRun:
    """Read the run in a folder.

    Raises:
        ConfigError: no run, one that isn't finished, or one without privacy; files that contradict each other, or a record that
            claims other than its facts give.
        RunFailed: ``metrics.jsonl`` is damaged.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}: name the folders of runs, as groupclip train --out made them")
    if (folder / "NOT-PRIVATE.txt").is_file():
        raise ConfigError(
            f"{folder} is a run without privacy: its accuracy tells of the training records without noise, so a page that has it "
            "can't be published. Leave that run out"
        )
    if not (folder / "release").is_dir():
        hint = f"finish it by groupclip train --resume {folder}" if (folder / "resume").is_dir() else "name the folder of a run"
        raise ConfigError(f"{folder} holds no release: {hint}")
    config = RunConfig(**checked_request(read_yaml(folder / "run.yaml")))
    facts, path = _json(folder / "release" / "config.json"), folder / "release" / RECORD
    try:
        record = read_record(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} can't be read ({error}): put back what the run wrote") from error
    try:
        claims = differences(record)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}; a run of this version of groupclip has what is missing") from error
    if claims:
        raise ConfigError(f"{path} claims other than its facts give: {'; '.join(claims)}")
    told = {"batch_size": record["expected_batch_size"], "steps": record["steps_planned"]}
    for name, value in told.items():
        if getattr(config, name) != value:
            raise ConfigError(
                f"{folder}: run.yaml says {name}={getattr(config, name)!r}, and release/privacy.json {value!r}: they are of "
                "different runs. Put the files of one run together"
            )
    name = folder.name or folder.absolute().name
    return PublishedRun(name, config, record, facts, read_rows(folder / "metrics.jsonl"))


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} can't be read ({error}): put back what the run wrote") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no JSON object: put back what the run wrote")
    return content
