"""The table of the zoo for the docs, from the figures that ``benchmarks/zoo.py`` writes."""

from __future__ import annotations

from typing import Any

from judge import STYLES

HEAD = """# Zoo

Each model below is trained through groupclip for one pass and compared with a loop over single samples in float64 that
knows nothing of groupclip: losses, norms and clipped sums, with thresholds that clip some samples and not others. Made by

    python benchmarks/zoo.py --json docs/zoo.json --table docs/zoo.md

with {setting}.

The models are tiny (two layers, 16 wide), their weights random (seed {seed}, every parameter moved away from zero and one), a
batch has {batch} samples (seed 1), texts are of different lengths, padded and masked. Models are in training mode with dropout
at zero: the oracle would draw other numbers. `tests/zoo` runs the same in every test run, and each model on batches of other
sizes and lengths.

The figures are the worst error of any loss (relative), norm (relative to the group's largest) and entry of a clipped sum
(relative to the group's threshold). Float64 passes at {f64:.0e}; the last column of figures is one group in float32, which
passes at {f32:.0e}. Where a model casts to float32 inside, the float64 runs cast to float64 instead.

Most parameters go through closed forms. *vmap*: this one operation runs with the parameters expanded for each sample, so their
per-sample gradients are instantiated: exact. In none of these models must samples run one at a time.
"""
COLUMNS = ("model", "attention", "parameters", *STYLES, "float32", "result", "without a closed form, and why")
MADE_BY_HAND = (
    "\nHand-written models, each of which arranges samples or uses parameters in a way that is easy to get wrong:\n"
)


def lines(rows: list[dict[str, Any]], entries: list[str]) -> list[str]:
    """The table, one line for each entry."""
    found = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for entry in entries:
        own = {(r["style"], r["dtype"]): r for r in rows if r["model"] == entry}
        name, _, attention = entry.rpartition(" (") if entry.endswith(")") else (entry, "", "")
        errors = [own[style, "float64"].get("worst_relative_error") for style in STYLES]
        errors.append(own["all-layer", "float32"]["worst_relative_error"])
        notes = {why: what for r in own.values() for what, why in r.get("without_rule", {}).items()}
        refused = [f"{style} refused: {r['why']}" for (style, _), r in own.items() if r["result"] == "refused"]
        wrong = any(r["result"] == "WRONG" for r in own.values())
        cells = [name, attention.removesuffix(")") or "-", str(own["all-layer", "float64"]["parameters"])]
        cells += ["-" if e is None else f"{e:.0e}" for e in errors]
        cells += ["WRONG" if wrong else "exact", "; ".join([f"{what}: {why}" for why, what in notes.items()] + refused)]
        found.append("| " + " | ".join(cells) + " |")
    return found


def table(report: dict[str, Any]) -> str:
    """``docs/zoo.md`` from the figures alone."""
    setting = ", ".join(f"{name} {value}" for name, value in report["setting"].items() if name not in ("seed", "batch"))
    head = HEAD.format(
        setting=setting, seed=report["setting"]["seed"], batch=report["setting"]["batch"],
        f64=report["passes_at"]["float64"], f32=report["passes_at"]["float32"],
    )  # fmt: skip
    rows, names = report["rows"], list(dict.fromkeys(r["model"] for r in report["rows"]))
    theirs = [n for n in names if n.endswith(")")]  # with an attention in brackets
    ours = [n for n in names if not n.endswith(")")]
    return "\n".join([head, *lines(rows, theirs), MADE_BY_HAND, *lines(rows, ours), ""])
