"""Writes docs/reproduction/sst2-small.md and e2e-small.md and their plots from the JSON there; the words are in NAME.in.md.

    python benchmarks/text_small_page.py [FOLDER]

With a folder of results (of ``groupclip reproduce sst2 --scale small --out FOLDER``) the JSON is first made from them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from groupclip.paper.pages import environments, experiments_in
from groupclip.paper.results import gather, gathered
from groupclip.paper.scaled import e2e, text
from groupclip.paper.scaled.text_report import Report

DOCS = Path(__file__).parent.parent / "docs" / "reproduction"
PAGES = {
    text.NAME: (
        text.BALANCED,
        {
            "accuracy": "accuracy, %",
            "auc": "area under ROC, %",
            "loss": "cross-entropy",
            "called_positive": "called positive, %",
        },
    ),
    e2e.NAME: ("e2e", {"loss": "loss, nats a token", "bleu": "BLEU", "rouge_l": "ROUGE-L", "perplexity": "perplexity"}),
}


def write(name: str) -> None:
    data, metrics = PAGES[name]
    results = gathered(DOCS / f"{name}.json")
    report = Report(results, data, metrics)
    words = (DOCS / f"{name}.in.md").read_text(encoding="utf-8")
    for key, value in {**report.values(), "HARDWARE": environments(results)}.items():
        words = words.replace(f"@{key}@", value)
    (DOCS / f"{name}.md").write_text(words, encoding="utf-8")
    (DOCS / f"{name}-groups.svg").write_text(report.over_groups(), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="of results")
    folder = parser.parse_args().folder
    for name in PAGES:
        if folder is not None and name in experiments_in(folder):
            gather(folder, name, DOCS / f"{name}.json")
        if (DOCS / f"{name}.json").exists():
            write(name)


if __name__ == "__main__":
    main()
