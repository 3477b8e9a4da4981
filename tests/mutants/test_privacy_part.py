"""``tests/privacy.txt`` lists the tests of the guarantee: ``pytest @tests/privacy.txt``."""

from __future__ import annotations

from pathlib import Path

from plant import ROOT
from planted import MUTANTS

LISTED = (ROOT / "tests" / "privacy.txt").read_text(encoding="utf-8").split()


def test_what_is_listed_is_there_once() -> None:
    assert all((ROOT / name).exists() for name in LISTED)
    assert len(set(LISTED)) == len(LISTED)


def test_every_test_that_kills_a_planted_bug_is_listed() -> None:
    files = {test.split("::")[0] for mutant in MUTANTS for test in mutant.tests}
    assert {name for name in files if not any(Path(name).is_relative_to(entry) for entry in LISTED)} == set()
