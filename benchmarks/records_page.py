"""Writes docs/records.md from docs/records.json; the words are in docs/reproduction/records.in.md.

    python benchmarks/records_page.py [FOLDER]

With a folder of results (of ``groupclip reproduce records --out FOLDER``) the JSON is first made from them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from groupclip.paper.pages import environments
from groupclip.paper.records import imbalance, pixels
from groupclip.paper.records.build import NAME
from groupclip.paper.records.page import page
from groupclip.paper.results import gather, gathered

DOCS = Path(__file__).parent.parent / "docs"


def written(docs: Path) -> str:
    """The page, from the results that are kept in ``docs``."""
    results = gathered(docs / f"{NAME}.json")
    text = (docs / "reproduction" / f"{NAME}.in.md").read_text(encoding="utf-8")
    coarser = json.loads((docs / pixels.FILE).read_text(encoding="utf-8"))
    made = {
        "TABLE": page(results), "HARDWARE": environments(results), "PIXELS": pixels.rows_of(coarser),
        "IMBALANCE": imbalance.rows_of(gathered(docs / f"{imbalance.NAME}.json")),
    }  # fmt: skip
    for name, value in made.items():
        text = text.replace(f"@{name}@", value)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="of results")
    folder = parser.parse_args().folder
    if folder is not None:
        gather(folder, NAME, DOCS / f"{NAME}.json")
    (DOCS / f"{NAME}.md").write_text(written(DOCS), encoding="utf-8")


if __name__ == "__main__":
    main()
