"""Writes docs/performance.md from docs/performance.json; its words are in benchmarks/performance.in.md.

    python benchmarks/performance_page.py
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
WORDS = Path(__file__).parent / "performance.in.md"
WIDTH = 132  # of a line of words
TARGET = 0.15  # ms over plain a trainable parameter
Facts = dict[str, Any]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def spread(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:.2f} ({ratio['q1']:.2f} to {ratio['q3']:.2f})"


def said(exact: bool | None) -> str:
    return {None: "", True: "yes", False: "no"}[exact]


HEAD = ["way", "over plain", "by the clock", "ms", "ms a parameter", "calls a parameter", "FLOPs", "exact"]


def model(facts: Facts) -> str:
    body = [
        [way, spread(r["processor"]["ratio"]), spread(r["wall"]["ratio"]), f"{r['processor']['ms']:.2f}",
         f"{r['ms over plain a parameter']:.2f}", f"{r['calls over plain a parameter']:.0f}", f"{r['flops over plain']:.2f}",
         said(r["as single samples"])]
        for way, r in facts["ways"].items()
    ]  # fmt: skip
    body += [[way, f"refuses: `{textwrap.shorten(why, 90)}`", *[""] * 6] for way, why in facts["refused"].items()]
    title = f"**{facts['name']}**: {facts['parameters']} trainable parameters."
    return f"{title}\n\n{table(HEAD, body)}"


def quickest(facts: Facts, library: str) -> float:
    """The least median ratio of a library's ways."""
    return min(r["processor"]["ratio"]["median"] for way, r in facts["ways"].items() if way.startswith(library))


def verdict(models: dict[str, Facts]) -> str:
    """Says where groupclip is slower than Opacus, and what a parameter costs."""
    lines = []
    for facts in models.values():
        ours = quickest(facts, "groupclip")
        if not any(way.startswith("Opacus") for way in facts["ways"]):
            lines.append(f"- {facts['name']}: {ours:.2f} times plain; Opacus refuses it.")
            continue
        theirs = quickest(facts, "Opacus")
        word = "slower" if ours > theirs else "quicker"
        by = max(ours, theirs) / min(ours, theirs)
        found = f"{ours:.2f} times plain against {theirs:.2f}, so groupclip is {by:.2f} times {word}"
        lines.append(f"- {facts['name']}: {found}.")
    costs = [f["ways"]["groupclip, all-layer"]["ms over plain a parameter"] for f in models.values()]
    met = sum(cost <= TARGET for cost in costs)
    return (
        "The quickest way of each library compares so:\n\n" + "\n".join(lines) + "\n\n"
        f"Over all layers, groupclip takes {min(costs):.2f} to {max(costs):.2f} ms over plain a trainable parameter. "
        f"The target of {TARGET} is met on {met} of {len(costs)} models."
    )


def padding(orders: dict[str, Facts]) -> str:
    kinds = list(next(iter(orders.values())))
    body = [[order, *(spread(row[kind]["processor"]["ratio"]) for kind in kinds)] for order, row in orders.items()]
    return table(["first met", *kinds], body)


def factors(orders: dict[str, Facts]) -> str:
    """The greatest median ratio over the least, of each kind of batch."""
    kinds = list(next(iter(orders.values())))
    medians = {kind: [row[kind]["processor"]["ratio"]["median"] for row in orders.values()] for kind in kinds}
    return ", ".join(f"{max(found) / min(found):.2f} ({kind})" for kind, found in medians.items())


def sizes(found: dict[str, Facts]) -> str:
    body = [
        [size, spread(r["processor"]["ratio"]), spread(r["wall"]["ratio"]), f"{r['processor']['ms']:.2f}",
         f"{r['processor']['over, ms']['median']:.2f}"]
        for size, r in found.items()
    ]  # fmt: skip
    return table(["samples", "over plain", "by the clock", "ms", "ms over plain"], body)


def alone(ways: dict[str, Facts]) -> str:
    body = [
        [way, spread(r["processor"]["ratio"]), spread(r["wall"]["ratio"]), f"{r['processor']['ms']:.1f}"]
        for way, r in ways.items()
    ]
    return table(["way", "over the loop", "by the clock", "ms"], body)


def environment(found: dict[str, str]) -> str:
    names = ("torch", "opacus", "transformers", "peft", "numpy")
    versions = ", ".join(f"{name} {found[name]}" for name in names)
    threads = "1 thread" if found["threads"] == "1" else f"{found['threads']} threads"
    return f"{found['system']}, {found['processor']}, {threads}, Python {found['python']}, {versions}"


def load(setting: Facts) -> str:
    return f"When the run began, {setting['load before']} processes were running or waiting (the load of one minute)."


def page(facts: Facts) -> str:
    text = WORDS.read_text(encoding="utf-8")
    values = {
        "ENVIRONMENT": environment(facts["environment"]), "LOAD": load(facts["setting"]),
        "ROUNDS": str(facts["setting"]["rounds"]), "SEED": str(facts["setting"]["seed"]), "TARGET": f"{TARGET} ms",
        "MODELS": "\n\n".join(model(each) for each in facts["models"].values()), "VERDICT": verdict(facts["models"]),
        "ALONE_NAME": facts["one at a time"]["name"], "ALONE": alone(facts["one at a time"]["ways"]),
        "PADDING": padding(facts["padding"]), "SPREAD": factors(facts["padding"]), "SIZES": sizes(facts["sizes"]),
    }  # fmt: skip
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return "\n".join(textwrap.fill(line, WIDTH) if re.match(r"[A-Z]", line) else line for line in text.split("\n"))


def main() -> None:
    facts = json.loads((DOCS / "performance.json").read_text(encoding="utf-8"))
    (DOCS / "performance.md").write_text(page(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
