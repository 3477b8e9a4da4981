"""Writes docs/memory.md from docs/memory.json; its words are in benchmarks/memory.in.md.

    python benchmarks/memory_page.py
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def mb(size: float) -> str:
    return f"{size / 1e6:,.1f}"


def gb(size: float) -> str:
    return f"{size / 1e9:.2f}"


def accuracy(rows: list[dict[str, Any]]) -> str:
    body = [
        [r["shape"], r["style"], mb(r["predicted"]), mb(r["measured"]), f"{r['predicted'] / r['measured'] - 1:+.2%}"]
        for r in rows
    ]
    return table(["shape", "groups", "predicted, MB", "measured, MB", "difference"], body)


def fact(nets: dict[str, Any]) -> str:
    body = [
        [name, str(f["layers"]), *(f"{f['planned'][m]:.3f}" for m in ("1", "2", "3", "4", "6", "8")),
         f"{f['layer-wise']:.3f}", f"{f['uniform']['4']:.3f}", f"{f['planned']['4'] / f['uniform']['4']:.3f}"]
        for name, f in nets.items()
    ]  # fmt: skip
    planned = [f"planned:{m}" for m in (1, 2, 3, 4, 6, 8)]
    return table(["net", "layers", *planned, "layer-wise", "uniform:4", "planned:4 / uniform:4"], body)


def boundaries(nets: dict[str, Any]) -> str:
    body = [
        [net, style, gb(c["fact"]) if "fact" in c else "", gb(c["gram"]), gb(c["instantiated"]) if "fact" in c else ""]
        for net, columns in nets.items()
        for style, c in columns.items()
    ]
    return table(["net", "groups", "Fact, GB", "Gram norms, GB", "instantiated, GB"], body)


def main() -> None:
    facts = json.loads((DOCS / "memory.json").read_text(encoding="utf-8"))
    worst = max(abs(r["predicted"] / r["measured"] - 1) for r in facts["accuracy"] + facts["instantiated"])
    logs = {n: math.log10(int(v)) for n, v in facts["bell"].items()}
    text = (Path(__file__).parent / "memory.in.md").read_text(encoding="utf-8")
    figures = ("seconds", "processor", "process_gigabytes")
    seconds = [[net, *(str(s[key]) for key in figures)] for net, s in facts["seconds"].items()]
    bell = [[n, f"{int(v):,}", f"10^{logs[n]:.1f}"] for n, v in facts["bell"].items()]
    values = {
        "WORST": f"{worst:.2%}", "ACCURACY": accuracy(facts["accuracy"]), "INSTANTIATED": accuracy(facts["instantiated"]),
        "FACT": fact(facts["fact"]), "BOUNDARIES": boundaries(facts["boundaries"]),
        "SECONDS": table(["net", "seconds", "of processor time", "process, GB"], seconds),
        "BELL": table(["layers", "groupings", "as a power of ten"], bell),
    }  # fmt: skip
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    (DOCS / "memory.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
