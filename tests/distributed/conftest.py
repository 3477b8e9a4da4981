"""Process groups of 2 and of 3 ranks, each started once for all tests of this folder."""

from __future__ import annotations

from typing import Any

import pytest

import ranks


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """What each rank found, by the number of ranks: case -> what it returned."""
    modules = "ddp_cases,fsdp_cases,other_cases"
    return {size: ranks.run(size, modules, tmp_path_factory.mktemp(f"ranks{size}")) for size in (2, 3)}
