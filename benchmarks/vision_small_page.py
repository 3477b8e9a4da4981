"""Writes docs/reproduction/vision-small.md and its plots from vision-small.json there; the words are in vision-small.in.md.

    python benchmarks/vision_small_page.py [FOLDER]

With a folder of results (of ``groupclip reproduce vision --scale small --out FOLDER``) the JSON is first made from them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from groupclip.paper.pages import environments
from groupclip.paper.results import Result, gather, gathered
from groupclip.paper.scaled.summary import table
from groupclip.paper.scaled.vision_report import Report

DOCS = Path(__file__).parent.parent / "docs" / "reproduction"
NAME = "vision-small"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="of results")
    folder = parser.parse_args().folder
    kept = DOCS / f"{NAME}.json"
    if folder is not None:
        gather(folder, NAME, kept)
    results = gathered(kept)
    report = Report(results)
    search = learning_rates(gathered(DOCS / f"{NAME}-lr.json"))
    text = (DOCS / f"{NAME}.in.md").read_text(encoding="utf-8")
    for name, value in {**report.values(), "RATES": search, "HARDWARE": environments(results)}.items():
        text = text.replace(f"@{name}@", value)
    (DOCS / f"{NAME}.md").write_text(text, encoding="utf-8")
    (DOCS / f"{NAME}-groups.svg").write_text(report.over_groups(), encoding="utf-8")
    (DOCS / f"{NAME}-memory.svg").write_text(report.over_memory(), encoding="utf-8")


def learning_rates(results: Sequence[Result]) -> str:
    """Return the search on the stand-in: a row a kind of run, a column a learning rate, accuracy in percent."""
    rates = sorted({r.cell["lr"] for r in results})
    found = {
        (r.cell["steps"], r.cell["model"], r.cell["clipping"], r.cell["lr"]): r.metrics["accuracy"] for r in results
    }
    rows = [
        [model, style, steps, *(f"{found[steps, model, style, lr]:.1f}" if (steps, model, style, lr) in found else "not run"
                                for lr in rates)]
        for steps, model, style in sorted({key[:3] for key in found}, key=lambda k: (k[0], int(k[1].rpartition("-")[2]), k[2]))
    ]  # fmt: skip
    return table(["model", "style", "steps", *(f"lr {lr:g}" for lr in rates)], rows)


if __name__ == "__main__":
    main()
