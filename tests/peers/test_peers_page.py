"""``docs/peers.md`` and the tests of the peers' faults are in step."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = (HERE.parent.parent / "docs" / "peers.md").read_text(encoding="utf-8")
IDS = [f"{letter}{i}" for letter, last in (("F", 25), ("O", 15), ("L", 16)) for i in range(1, last + 1)]


def rows() -> dict[str, list[str]]:
    """Number of a fault -> names of its tests."""
    cells = [line.strip("|").split("|") for line in PAGE.splitlines() if re.match(r"\| [FOL]\d", line)]
    assert all(len(c) == 5 and all(part.strip() for part in c) for c in cells)
    assert [c[0].strip() for c in cells] == IDS  # each once, in order
    return {c[0].strip(): re.findall(r"`(test_\w+)`", c[4]) for c in cells}


def written() -> set[str]:
    """Names of the tests that bear a number."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in HERE.glob("test_*_faults.py"))
    return set(re.findall(r"^def (test_[fol]\d\d_\w+)", text, re.MULTILINE))


def test_every_fault_has_its_tests_and_every_test_its_faults() -> None:
    named = {(fault, name) for fault, names in rows().items() for name in names}
    borne = {
        (f"{letter.upper()}{int(number)}", name)
        for name in written()
        for letter, number in re.findall(r"_([fol])(\d\d)(?=_)", name)
    }
    assert named == borne
    assert {fault for fault, _ in named} == set(IDS)
