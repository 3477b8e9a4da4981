"""Theorem 1 against measured gradient norms, on the convex problem of groupclip.theory.convex; JSON and a figure.

    python benchmarks/bound.py --steps 100,300,1000 --runs 8 --out docs/figures/bound-convex

Writes OUT.json, OUT.png and OUT.svg. A step takes 2 to 4 ms on one core: about 2 minutes with these arguments.
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict
from pathlib import Path

import torch
from figures import draw_measured

import groupclip
from groupclip.theory import dp_sgd, proof_last_line, sgd_from_squares, theorem_as_printed
from groupclip.theory.convex import Quadratic, gradient_norms, least_quantile


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", default="1,2,4")
    parser.add_argument("--steps", default="100,300,1000")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    groups, steps = ([int(part) for part in text.split(",")] for text in (arguments.groups, arguments.steps))
    problem, rows = Quadratic(), []
    for count in groups:
        for number in steps:
            setting = problem.setting(steps=number)
            runs = [gradient_norms(problem, setting, count, seed) for seed in range(arguments.runs)]
            row = {
                "groups": count,
                "steps": number,
                "measured": least_quantile(runs, setting.rho),
                "at_the_end": least_quantile([run[-1:] for run in runs], setting.rho),
                "bound": dp_sgd(setting, count).norm,
                "proof_last_line": proof_last_line(setting, count),
                "theorem_as_printed": theorem_as_printed(setting, count),
                "sgd": sgd_from_squares(setting),
            }
            rows.append(row)
            print(json.dumps(row), flush=True)
    setting = problem.setting(steps=steps[-1])
    facts = {
        "problem": asdict(problem),
        "setting": asdict(setting) | {"steps": steps},
        "trivial": setting.trivial,
        "runs": arguments.runs,
        "versions": {"groupclip": groupclip_version(), "torch": torch.__version__, "python": platform.python_version()},
        "rows": rows,
    }
    arguments.out.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    curves = {
        name: {m: [(r["steps"], r[name]) for r in rows if r["groups"] == m] for m in groups}
        for name in ("bound", "measured")
    }
    for ending in (".png", ".svg"):
        draw_measured(arguments.out.with_suffix(ending), curves["bound"], curves["measured"], setting)


def groupclip_version() -> str:
    from importlib.metadata import version

    return version(groupclip.__name__)


if __name__ == "__main__":
    main()
