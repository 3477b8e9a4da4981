"""Where the data and the pretrained weights of the paper's experiments come from."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ..errors import GroupClipError

INSTALL = "pip install 'groupclip[reproduce]'"


class MissingSource(GroupClipError):
    """Data, weights or a package that isn't here; the message says how to get it."""


@dataclass(frozen=True, kw_only=True)
class Hub:
    """The Hugging Face hub, or what an earlier download left in its cache (``HF_HOME``).

    With the environment variable ``HF_HUB_OFFLINE=1`` nothing is downloaded and only the cache is read.
    """


@dataclass(frozen=True, kw_only=True)
class Local:
    """A folder that holds the same as the hub: ``data/<data set>`` and ``models/<model>``.

    ``data/<data set>`` was written by ``datasets``' ``save_to_disk``, or holds the hub's parquet files (anywhere below it,
    each with its split in its name: ``train-00000-of-00001.parquet``). ``models/<model>`` holds the files of the hub's
    repository: ``config.json``, ``model.safetensors``, ``tokenizer.json`` ...

    Attributes:
        folder: which.
        subset: the data may be fewer records than the published data set; said in the description.
    """

    folder: Path
    subset: bool = False


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """Made records of the right format and tiny models with random weights and the real number of layers: for dry runs.

    Attributes:
        records: how many of each split.
        seed: of records and weights.
    """

    records: int = 24
    seed: int = 0

    def __post_init__(self) -> None:
        if self.records < 1:
            raise ValueError(f"records={self.records} must be at least 1")


Source = Hub | Local | StandIn


def needed(module: str, what: str, install: str = INSTALL) -> ModuleType:
    """Import an optional package. ``MissingSource`` says what needs it and how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingSource(
            f"{what} needs the package '{error.name}', which isn't installed; run: {install}"
        ) from error


def needed_files(folder: Path, files: Mapping[str, str]) -> None:
    """Look for files by name -> what it holds. ``MissingSource`` names ALL that aren't there, so that one look is enough."""
    absent = [f"{name} ({holds})" for name, holds in files.items() if not (folder / name).is_file()]
    if absent:
        raise MissingSource(
            f"{folder} lacks {len(absent)} of the {len(files)} files that this experiment reads: {'; '.join(absent)}. Put them "
            "there; what each one holds, and where it comes from, is in docs/reproduction-data.md"
        )


def reason(error: Exception) -> str:
    """Say in a few words why the hub gave nothing."""
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
    why = "HF_HUB_OFFLINE is set and the cache doesn't hold it" if offline else "from the Hugging Face hub"
    first = str(error).strip().partition("\n")[0]
    return f"{why}; {type(error).__name__}: {first[:200]}"
