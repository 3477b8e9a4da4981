"""Writes docs/reproduction/sst2-small.md and e2e-small.md and their plots from the JSON there; the words are in NAME.in.md.

    python benchmarks/text_small_page.py [FOLDER]

With a folder of results (of ``groupclip reproduce sst2 --scale small --out FOLDER``) the JSON is first made from them.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from groupclip.reproduce.pages import environments
from groupclip.reproduce.results import Result, load_all
from groupclip.reproduce.scaled import e2e, text
from groupclip.reproduce.scaled.text_report import Report

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
    results = [Result(**facts) for facts in json.loads((DOCS / f"{name}.json").read_text(encoding="utf-8"))]
    report = Report(results, data, metrics)
    words = (DOCS / f"{name}.in.md").read_text(encoding="utf-8")
    for key, value in {**report.values(), "HARDWARE": environments(results)}.items():
        words = words.replace(f"@{key}@", value)
    (DOCS / f"{name}.md").write_text(words, encoding="utf-8")
    (DOCS / f"{name}-groups.svg").write_text(report.over_groups(), encoding="utf-8")


def main() -> None:
    for name in PAGES:
        if len(sys.argv) > 1 and (found := load_all(Path(sys.argv[1]), name)):
            lines = [json.dumps(asdict(r), sort_keys=True, default=dict) for r in found]
            (DOCS / f"{name}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
        if (DOCS / f"{name}.json").exists():
            write(name)


if __name__ == "__main__":
    main()
