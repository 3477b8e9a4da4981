"""Every model of the zoo in every style against the loop over single samples; writes the figures and the table of the docs.

    python benchmarks/zoo.py --json docs/zoo.json --table docs/zoo.md

About two minutes on one core. The models, batches and the judge are those of the tests (``tests/zoo``).
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS / "helpers"), str(TESTS / "zoo")]

warnings.simplefilter("ignore")  # of transformers and peft, on their own future

import families  # noqa: E402
import pathological  # noqa: E402
import transformers  # noqa: E402
from judge import SEED, STYLES, TOLERANCE, B, judge  # noqa: E402
from reasons import why_no_blocks, why_without_rule  # noqa: E402
from table import table  # noqa: E402

import groupclip as gc  # noqa: E402
from models import Entry  # noqa: E402


def measure(name: str, entry: Entry, style: str, dtype: torch.dtype) -> dict[str, Any]:
    """One row of the figures. A refusal must be one that is explained."""
    row: dict[str, Any] = {"model": name, "style": style, "dtype": str(dtype).removeprefix("torch.")}
    model = entry.model()
    row["parameters"] = sum(p.numel() for p in model.parameters() if p.requires_grad)
    try:
        row["groups"] = len(gc.partition(model, style).names)
    except ValueError as refusal:
        if style != "block-wise" or "found no repeated blocks" not in str(refusal):
            raise
        return row | {"result": "refused", "why": why_no_blocks(name)}
    verdict = judge(entry, style, dtype)
    return row | {
        "worst_relative_error": rounded(verdict.worst),
        "norms": rounded(verdict.norms),
        "sums": rounded(verdict.sums),
        "losses": rounded(verdict.losses),
        "operations": dict(verdict.operations),
        "norm_methods": dict(verdict.methods),
        "without_rule": why_without_rule(name, verdict.without_rule),
        "result": "exact" if verdict.worst <= TOLERANCE[dtype] else "WRONG",
    }


def rounded(error: float) -> float:
    return float(f"{error:.1e}")


def as_json(report: dict[str, Any]) -> str:
    """One line a row."""
    parts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in report.items() if name != "rows"]
    rows = ",\n".join(map(json.dumps, report["rows"]))
    return "{" + ",\n".join(parts) + f',\n"rows": [\n{rows}\n]}}\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--only", default="", help="models whose name contains this")
    given = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    entries = {n: e for n, e in (families.ENTRIES | pathological.ENTRIES).items() if given.only in n}
    rows = []
    for name, entry in entries.items():
        rows += [measure(name, entry, style, torch.float64) for style in STYLES]
        rows.append(measure(name, entry, "all-layer", torch.float32))
        print(name, *[f"{r['style']}: {r.get('worst_relative_error', r['result'])}" for r in rows[-5:]], sep="; ")
    packages = {name: version(name) for name in ("torch", "transformers", "peft")}
    report = {
        "setting": packages | {"python": platform.python_version(), "seed": SEED, "batch": B},
        "passes_at": {str(dtype).removeprefix("torch."): tolerance for dtype, tolerance in TOLERANCE.items()},
        "rows": rows,
    }
    given.json.write_text(as_json(report))
    given.table.write_text(table(json.loads(given.json.read_text())))
    return int(any(r["result"] == "WRONG" for r in rows))


if __name__ == "__main__":
    raise SystemExit(main())
