"""CONTRIBUTING.md: its worked examples run as they stand there, and every file that it names is there."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import groupclip.memory  # registers its styles
import groupclip.rules  # noqa: F401  registers the rules; both before the examples add theirs
from groupclip.autograd.dispatch import RULES
from groupclip.cli.options import TASK_OPTIONS
from groupclip.partition.styles import NAMED
from groupclip.tasks.registry import LOADERS, TASKS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (Add [^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
FENCE = re.compile(r"^```python\n# (\S+)\n(.*?)^```", re.M | re.S)
TABLES: list[dict[Any, Any]] = [RULES, NAMED, TASKS, LOADERS, TASK_OPTIONS]


def files(section: str) -> list[tuple[str, str]]:
    """(path, code) of every file that a section shows, in order."""
    return FENCE.findall(SECTIONS[section])


@pytest.fixture
def registered(request: pytest.FixtureRequest) -> Iterator[list[ModuleType]]:
    """The files of a section as modules, the code first; what they register is taken out again."""
    before = [set(table) for table in TABLES]
    made: list[ModuleType] = []
    try:
        for path, code in files(request.param):
            name = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
            module = ModuleType(name)
            if name not in sys.modules:  # a new file; other blocks add to a file that there is
                sys.modules[name] = module
                made.append(module)
            exec(compile(code, path, "exec"), module.__dict__)
            if path.startswith("tests/") and module not in made:
                made.append(module)
        yield made
    finally:
        for table, old in zip(TABLES, before, strict=True):
            for name in set(table) - old:
                del table[name]
        for module in made:
            sys.modules.pop(module.__name__, None)


def run_tests(modules: list[ModuleType], folder: Path) -> int:
    """Call every test of the modules, with each value of its parametrize; return how many were called."""
    called = 0
    for module in modules:
        for name, test in list(vars(module).items()):
            if not name.startswith("test_"):
                continue
            grids = [mark.args for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
            cases: list[dict[str, Any]] = [{names: value} for names, values in grids for value in values] or [{}]
            for case in cases:
                if "tmp_path" in inspect.signature(test).parameters:
                    case["tmp_path"] = folder
                test(**case)
                called += 1
    return called


@pytest.mark.parametrize(
    ("registered", "tests"),
    [("Add a rule", 3), ("Add a clipping style", 1), ("Add a task", 2)],
    indirect=["registered"],
    ids=["rule", "style", "task"],
)
def test_a_worked_example_passes_its_own_tests(registered: list[ModuleType], tests: int, tmp_path: Path) -> None:
    assert run_tests(registered, tmp_path) == tests


@pytest.mark.parametrize("section", SECTIONS)
def test_an_example_adds_what_is_not_there(section: str) -> None:
    """Else it would teach to write what the package has."""
    assert torch.index_select not in RULES and "matrices-apart" not in NAMED and "jsonl" not in TASKS
    shown = files(section)
    assert any(path.startswith("src/") for path, _ in shown) and any(path.startswith("tests/") for path, _ in shown)
    for path, _ in shown:
        assert (ROOT / path).parent.is_dir()
    assert all(len(line) <= 120 for _, code in shown for line in code.splitlines())  # as ruff format has it


def test_every_file_that_is_named_is_there() -> None:
    new = {"rules/index_select.py", "rules/test_index_select.py", "tasks/jsonl.py", "tasks/test_jsonl.py"}
    named = set(re.findall(r"`((?:src/groupclip|tests|scripts|docs)/[\w/.]*\w)`", PAGE))
    named |= set(re.findall(r"((?:tests|scripts)/[\w/]+\.py)", PAGE)) | {"scripts/test"}
    assert len(named) > 15
    absent = {path for path in named if not (ROOT / path).exists() and not any(path.endswith(n) for n in new)}
    assert not absent


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", PAGE):
        assert (ROOT / link).exists(), link
