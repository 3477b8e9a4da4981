"""Planted bugs: the list fits the source (quick), and every one is killed by ordinary tests (slow).

The table is ``docs/mutants.md``; ``python benchmarks/mutants.py`` writes it.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from plant import PACKAGE, ROOT, copied, tried, verdict
from planted import MUTANTS, Edit, Mutant


def test_there_are_enough_and_each_has_a_name_of_its_own() -> None:
    assert len(MUTANTS) >= 15
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)
    assert len({m.edits for m in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_the_bug_can_still_be_planted(mutant: Mutant) -> None:
    """Its text occurs once, the result is Python, and the tests that must notice it are there."""
    sources = {edit.file: (PACKAGE / edit.file).read_text(encoding="utf-8") for edit in mutant.edits}
    for edit in mutant.edits:
        assert sources[edit.file].count(edit.old) == 1, f"{edit.file}: the text that {mutant.name!r} replaces is gone"
        sources[edit.file] = sources[edit.file].replace(edit.old, edit.new)
    for source in sources.values():
        ast.parse(source)
    assert all((ROOT / test.split("::")[0]).is_file() for test in mutant.tests)


def test_the_copy_without_a_bug_passes(tmp_path: Path) -> None:
    """The same machinery says nothing against the package as it is. (The slow test below asks every file.)"""
    copied(tmp_path)
    assert tried(tmp_path, ["tests/privacy/test_ledger.py"]).killed_by == ""


def test_a_planted_bug_is_noticed(tmp_path: Path) -> None:
    """The twin: a bug in that very place fails that very run."""
    found = next(m for m in MUTANTS if m.name == "a step past the plan")
    assert verdict(found, tmp_path).killed_by.startswith("tests/privacy/test_ledger.py::")


def test_what_gives_no_verdict_is_no_kill(tmp_path: Path) -> None:
    """A copy that can't even be imported was not noticed by a test."""
    copied(tmp_path, [Edit("privacy/sampled_step.py", "class Bounds:", "class Bounds(")])
    with pytest.raises(RuntimeError, match=r"no verdict|another groupclip"):
        tried(tmp_path, ["tests/privacy/test_ledger.py"])


def test_the_table_is_of_this_list() -> None:
    facts = json.loads((ROOT / "docs" / "mutants.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "mutants.md").read_text(encoding="utf-8")
    assert [row["name"] for row in facts["mutants"]] == [m.name for m in MUTANTS]
    for row, mutant in zip(facts["mutants"], MUTANTS, strict=True):
        assert row["killed_by"].split("::")[0] in {test.split("::")[0] for test in mutant.tests}
        assert f"| {mutant.name} | {mutant.promise} |" in page


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_the_bug_is_killed(mutant: Mutant, tmp_path: Path) -> None:
    assert verdict(mutant, tmp_path).killed_by, f"{mutant.name} survives {' '.join(mutant.tests)}"


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_every_file_passes_without_a_bug(tmp_path: Path) -> None:
    """No kill above is of a test that fails anyway."""
    copied(tmp_path)
    for test in sorted({test for mutant in MUTANTS for test in mutant.tests}):
        assert tried(tmp_path, [test]).killed_by == ""
