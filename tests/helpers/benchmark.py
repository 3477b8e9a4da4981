"""Programs of benchmarks/, as modules that tests look into."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def benchmark(name: str) -> ModuleType:
    """The module ``benchmarks/NAME.py``."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module ``benchmarks/NAME.py``, which imports the scripts beside it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module(name)
