"""docs/reproduction.md is what its script makes, as far as that is quick: every command, and the full-scale tables."""

import re
from pathlib import Path

from benchmark import benchmark
from groupclip.paper.catalogue import catalogue
from groupclip.paper.cells import EXPERIMENT
from groupclip.paper.tables import Found

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def script():
    return benchmark("reproduction_page")


def test_the_page_has_every_row_and_its_command():
    page = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    for table in catalogue().values():
        assert script().commands(table).strip() in page, table.name
    assert not re.search("@[A-Z]+@", page)


def test_the_full_scale_tables_are_what_is_kept():
    made = script()
    assert (DOCS / "reproduction" / "full-scale.md").read_text() == made.full_scale(Found(made.kept(EXPERIMENT)))[0]


def test_a_page_becomes_a_section():
    text = "# Title\n\nWords ![a](x-small.svg), [b](../memory.md), [c](https://h/), [d](#top).\n\n## Part\n"
    assert script().deeper(text) == (
        "\nWords ![a](reproduction/x-small.svg), [b](memory.md), [c](https://h/), [d](#top).\n\n#### Part\n"
    )


def test_the_section_on_size_is_what_is_kept():
    page = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    assert f"## Does the gap shrink with size?\n\n{script().sizes()}\n\n## Every row" in page
