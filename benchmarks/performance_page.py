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
FIRST = 0.6  # s over plain of a first step
CHECKED = 5  # s of a check
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


def bare(models: dict[str, Facts]) -> str:
    """Says what the arithmetic alone takes, beside all of groupclip."""
    found = []
    for facts in models.values():
        for way, r in facts["ways"].items():
            if way.startswith("the bare arithmetic"):
                ours = facts["ways"]["groupclip, all-layer"]
                each = r["ms over plain a parameter"], ours["ms over plain a parameter"]
                found.append(f"{each[0]:.2f} ms a parameter where groupclip takes {each[1]:.2f} ({facts['name']})")
    return f"It takes {', and '.join(found)}."


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


def histories(models: dict[str, Facts]) -> str:
    """For each kind of batch, its pass after each history over that of an engine that met no other kind."""
    orders = list(next(iter(models.values()))["histories"])
    parts = []
    for facts in models.values():
        body = [
            [re.sub("^1 samples", "1 sample", kind), f"{row['ms alone']:.1f}",
             *(f"{row['over alone'][order]['median']:.2f}" for order in orders)]
            for kind, row in facts["kinds"].items()
        ]  # fmt: skip
        parts.append(f"**{facts['name']}**:\n\n{table(['batch', 'ms', *orders], body)}")
    return "\n\n".join(parts)


def strayed(models: dict[str, Facts]) -> str:
    """How many medians are more than a tenth away from 1, and the furthest two."""
    found = [q["median"] for facts in models.values() for row in facts["kinds"].values() for q in row["over alone"].values()]
    beyond = sum(not 1 / 1.1 <= ratio <= 1.1 for ratio in found)
    return (
        f"Of {len(found)} ratios, the least is {min(found):.2f} and the greatest {max(found):.2f}. Outside of the target: {beyond}."
    )


def first_step(facts: Facts) -> str:
    names = ("attach", "forward and backward", "step", "all")
    rows = [
        [way, *(f"{facts['ways'][way]['wall'][name]:.2f}" if name in facts["ways"][way]["wall"] else "" for name in names),
         f"{facts['ways'][way]['processor']['all']:.2f}"]
        for way in ("plain", "private")
    ]  # fmt: skip
    return table(["first step", *names, "processor"], rows)


def first_verdict(facts: Facts) -> str:
    over, taken = facts["private over plain, s"], facts["ways"]["plain"]["wall"]
    by_clock, by_processor = over["wall"]["median"], over["processor"]["median"]
    each = ", ".join(f"{value:.2f}" for value in over["wall"]["each"])
    return (
        f"The private step takes {by_clock:.2f} s over the plain one by the clock ({each} in each round) and {by_processor:.2f} s "
        f"of processor time. The target is {FIRST} s by the clock. `gc.check` takes {taken['check']:.1f} s by the clock, "
        f"{facts['check over a pass']['wall']:.1f} times a plain forward and backward pass "
        f"of the same process ({taken['pass']:.2f} s). Its target is {CHECKED} s."
    )


def threads(number: int) -> str:
    return "1 thread" if number == 1 else f"{number} threads"


def environment(found: dict[str, str]) -> str:
    names = ("torch", "opacus", "transformers", "peft", "numpy")
    versions = ", ".join(f"{name} {found[name]}" for name in names)
    return f"{found['system']}, {found['processor']}, {threads(int(found['threads']))}, Python {found['python']}, {versions}"


def load(setting: Facts) -> str:
    return f"When the run began, {setting['load before']} processes were running or waiting (the load of one minute)."


def page(facts: Facts) -> str:
    text = WORDS.read_text(encoding="utf-8")
    values = {
        "ENVIRONMENT": environment(facts["environment"]), "LOAD": load(facts["setting"]),
        "ROUNDS": str(facts["setting"]["rounds"]), "SEED": str(facts["setting"]["seed"]), "TARGET": f"{TARGET} ms",
        "MODELS": "\n\n".join(model(each) for each in facts["models"].values()), "VERDICT": verdict(facts["models"]),
        "BARE": bare(facts["models"]),
        "ALONE_NAME": facts["one at a time"]["name"], "ALONE": alone(facts["one at a time"]["ways"]),
        "PADDING": padding(facts["padding"]), "SPREAD": factors(facts["padding"]), "SIZES": sizes(facts["sizes"]),
        "HISTORIES": histories(facts["histories"]["found"]), "STRAYED": strayed(facts["histories"]["found"]),
        "HISTORIES_LOAD": load(facts["histories"]), "FIRST_NAME": facts["first step"]["found"]["name"],
        "FIRST_PROCESSES": str(facts["first step"]["found"]["processes"]),
        "FIRST_THREADS": threads(facts["first step"]["found"]["threads"]), "FIRST": first_step(facts["first step"]["found"]),
        "FIRST_VERDICT": first_verdict(facts["first step"]["found"]), "FIRST_LOAD": load(facts["first step"]),
    }  # fmt: skip
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return "\n".join(textwrap.fill(line, WIDTH) if re.match(r"[A-Z]", line) else line for line in text.split("\n"))


def main() -> None:
    facts = json.loads((DOCS / "performance.json").read_text(encoding="utf-8"))
    (DOCS / "performance.md").write_text(page(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
