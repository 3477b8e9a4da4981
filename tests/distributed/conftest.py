"""Process groups of 3 and of 2 ranks, each started once for all tests of this folder: starting one takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ranks

MODULES = "ddp_cases,fsdp_cases,other_cases,bytes_cases,resume_cases"


@pytest.fixture(scope="session")
def folder_of_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ranks leave what later ones read."""
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="session")
def told(folder_of_ranks: Path) -> dict[int, list[dict[str, Any]]]:
    """What each rank found, by the number of ranks: case -> what it returned."""
    found = {}
    for size in (3, 2):
        folder = folder_of_ranks / str(size)
        folder.mkdir()
        found[size] = ranks.run(size, MODULES, folder)
    return found


@pytest.fixture(scope="session")
def told_by_stages(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """What each rank found as a stage of a pipeline, by the number of ranks."""
    folder = tmp_path_factory.mktemp
    return {size: ranks.run(size, "pipe_cases", folder(f"stages-{size}"), patience=120) for size in (3, 2)}
