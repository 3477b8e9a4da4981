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


#: Peak memory in the paper's Table 2, in its GB: boundaries 2 to 10 of 12, all-layer, non-DP.
PAPER = {
    "ViT-L": {"2": 22.04, "4": 21.96, "6": 21.89, "8": 21.82, "10": 21.75, "all-layer": 23.52, "non-DP": 20.38},
    "RoBERTa-base": {"2": 11.94, "4": 11.95, "6": 12.22, "8": 13.40, "10": 14.57, "all-layer": 15.75, "non-DP": 11.63},
}
WAYS = ("all", "without one-hot", "without norms")


def library(nets: dict[str, Any]) -> str:
    body = [
        [net, style, f"{PAPER[net.split(',')[0]][style]:.2f}", *(f"{c[w] / 2**30:.2f}" if w in c else "" for w in WAYS)]
        for net, columns in nets.items()
        for style, c in columns.items()
    ]
    return table(["net", "boundary", "paper, GB", "hooks, GiB", "without one-hot ids", "without norm layers"], body)


def throughput(shapes: dict[str, Any]) -> str:
    body = [
        [shape, style, str(r["groups"] or ""), mb(r["peak"]), f"{r['throughput']:.2f}", f"{r['least']:.2f} to {r['most']:.2f}",
         f"{r['per_second']:.2f}"]
        for shape, rows in shapes.items()
        for style, r in rows.items()
    ]  # fmt: skip
    return table(["shape", "style", "groups", "peak, MB", "throughput / plain", "of all rounds", "samples/s"], body)


def hardware(setting: dict[str, Any]) -> str:
    return f"{setting['processor']}, {setting['threads']} thread, torch {setting['torch']}, Python {setting['python']}"


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
        "LIBRARY": library(facts["library"]), "THROUGHPUT": throughput(facts["throughput"]["shapes"]),
        "ROUNDS": str(facts["throughput"]["rounds"]), "HARDWARE": hardware(facts["throughput"]["setting"]),
        "SECONDS": table(["net", "seconds", "of processor time", "process, GB"], seconds),
        "BELL": table(["layers", "groupings", "as a power of ten"], bell),
    }  # fmt: skip
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    (DOCS / "memory.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
