"""Writes docs/speed.md from docs/speed.json; its words are in benchmarks/speed.in.md.

    python benchmarks/speed_page.py
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from performance_page import environment, spread, table

DOCS = Path(__file__).parent.parent / "docs"
WORDS = Path(__file__).parent / "speed.in.md"
COLUMNS = {
    "all-layer": "groupclip, all-layer", "block-wise": "groupclip, block-wise", "layer-wise": "groupclip, layer-wise",
    "planned:4": "groupclip, planned:4", "Opacus hooks": "Opacus, hooks", "Opacus ghost": "Opacus, ghost clipping",
}  # fmt: skip
#: Of the quickest style, and of all-layer.
GOALS = {
    "vit": (1.08, 1.15), "roberta": (1.12, 1.20), "gpt2": (1.08, 1.12), "lora": (1.02, 1.02), "cnn": (1.30, 1.30),
    "mlp": (1.25, 1.25),
}  # fmt: skip
SIZES = {"samples": "samples B", "positions": "positions T", "width": "width", "depth": "layers"}
Facts = dict[str, Any]


def ratio(facts: Facts, way: str) -> float | None:
    found = facts["ways"].get(way)
    return None if found is None else found["wall"]["ratio"]["median"]


def quickest(facts: Facts) -> float:
    """The least ratio of our styles."""
    return min(found["wall"]["ratio"]["median"] for way, found in facts["ways"].items() if way.startswith("groupclip"))


def ratios(facts: Facts) -> list[str]:
    found = (ratio(facts, way) for way in COLUMNS.values())
    return [facts["name"], *(f"{one:.2f}" if one is not None else "refuses" for one in found)]


def summary(models: dict[str, Facts]) -> str:
    rows = [[*ratios(facts), "{:.2f} / {:.2f}".format(*GOALS[name])] for name, facts in models.items()]
    return table(["model", *COLUMNS, "goal (best / all-layer)"], rows)


def rounded(models: dict[str, Facts]) -> str:
    """Models in mixed precision, over plain training in the same."""
    rows = [[*ratios(facts), f"{facts['ways']['plain']['wall']['ms']:.0f}"] for facts in models.values()]
    return table(["model", *COLUMNS, "plain, ms"], rows)


def met(models: dict[str, Facts]) -> str:
    reached = {name: (quickest(f) <= GOALS[name][0], f["ways"]["groupclip, all-layer"]["wall"]["ratio"]["median"] <= GOALS[name][1])
               for name, f in models.items()}  # fmt: skip
    best, flat = (sum(pair[i] for pair in reached.values()) for i in (0, 1))
    return f"Of {len(models)} models, {best} reach the first goal and {flat} the second."


def limits(models: dict[str, Facts]) -> str:
    rows = []
    for facts in models.values():
        plain = facts["ways"]["plain"]["wall"]["ms"]
        ours = {way: found for way, found in facts["ways"].items() if way in ("groupclip, all-layer", "groupclip, layer-wise")}
        products = " / ".join(f"{found['flops over plain'] - 1:.2f}" for found in ours.values())
        calls = " / ".join(f"{found['calls over plain a parameter']:.0f}" for found in ours.values())
        over = " / ".join(f"{found['wall']['ratio']['median'] - 1:.2f}" for found in ours.values())
        noise = f"{facts['noise, ms'] / plain:.2f}"
        rows.append([facts["name"], f"{facts['numbers'] / 1e6:.2f} M", f"{plain:.0f}", noise, products, calls, over])
    head = ["model", "trainable numbers", "plain, ms", "noise", "products", "calls", "over plain, in all"]
    return table(head, rows)


def least(models: dict[str, Facts], weights: dict[str, Facts]) -> str:
    """What whole steps would take if all but the weights' gradients and the noise cost nothing."""
    rows = []
    for name, facts in models.items():
        found = weights[name]
        plain = found["plain step"]
        shares = [f"{found[way] / plain:.2f}" for way in ("plain", "layer-wise", "all-layer", "noise")]
        floors = {way: 1 + (found[way] - found["plain"] + found["noise"]) / plain for way in ("layer-wise", "all-layer")}
        best, flat = GOALS[name]
        goals = f"{best:.2f} / {flat:.2f}"
        rows.append([facts["name"], *shares, " / ".join(f"{floor:.2f}" for floor in floors.values()), goals])
    ways = ["plain product", "layer-wise", "all-layer", "noise"]
    head = ["model", *ways, "least step (layer-wise / all-layer)", "goal (best / all-layer)"]
    return table(head, rows)


def model(facts: Facts) -> str:
    rows = []
    for way, found in facts["ways"].items():
        memory = found["memory over plain"]
        groups = found["groups"]
        calls = f"{found['calls over plain a parameter']:.0f}"
        rows.append([
            way, "" if groups is None else str(groups), spread(found["wall"]["ratio"]), spread(found["processor"]["ratio"]),
            "" if memory is None else f"{memory:.2f}", f"{found['flops over plain']:.3f}", calls,
        ])  # fmt: skip
    rows += [[way, "", f"refuses: `{textwrap.shorten(why, 90)}`", *[""] * 4] for way, why in facts["refused"].items()]
    head = ["way", "M", "over plain", "processor time", "live memory", "FLOPs", "calls a parameter"]
    words = (
        f"{facts['parameters']} trainable parameters of {facts['numbers'] / 1e6:.2f} million numbers; a plain pass holds "
        f"{facts['plain MB']:.0f} MB beside them. {facts['rounds']} rounds; {facts['load before']} processes ran when they began."
    )
    return f"## {facts['name']}\n\n{words}\n\n{table(head, rows)}"


def growth(found: Facts) -> str:
    blocks = []
    for of, rows in found.items():
        body = [
            [size, f"{ways['plain']['wall']['ms']:.1f}", *(spread(ways[way]["wall"]["ratio"]) for way in ways if way != "plain")]
            for size, ways in rows.items()
        ]
        blocks.append(table([SIZES[of], "plain, ms", "all-layer", "layer-wise"], body))
    return "\n\n".join(blocks)


def page(facts: Facts) -> str:
    text = WORDS.read_text(encoding="utf-8")
    models = {name: facts["models"][name] for name in GOALS}
    others = {name: found for name, found in facts["models"].items() if name not in GOALS}
    values = {
        "ENVIRONMENT": environment(facts["environment"]), "SUMMARY": summary(models), "MET": met(models),
        "LIMITS": limits(models), "LEAST": least(models, facts["weights"]), "ROUNDED": rounded(others),
        "MODELS": "\n\n".join(model(each) for each in facts["models"].values()),
        "GROWTH": growth(facts["growth"]),
    }  # fmt: skip
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def main() -> None:
    facts = json.loads((DOCS / "speed.json").read_text(encoding="utf-8"))
    (DOCS / "speed.md").write_text(page(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
