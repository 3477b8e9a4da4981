"""Plants every bug of tests/mutants/planted.py and writes docs/mutants.json and docs/mutants.md.

python benchmarks/mutants.py                # every bug, and every file without one: about 4 minutes on 2 cores
python benchmarks/mutants.py --new          # the bugs and files that the table doesn't have yet, into the table
python benchmarks/mutants.py --only tied    # those whose name holds the word; writes nothing
python benchmarks/mutants.py --seeds 20     # the statistical tests under 20 seeds: false alarms; about 6 minutes
python benchmarks/mutants.py --page         # the page again, from docs/mutants.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FACTS, PAGE = ROOT / "docs" / "mutants.json", ROOT / "docs" / "mutants.md"
PLANTING = ROOT / "tests" / "mutants"
sys.path.insert(0, str(PLANTING))

from plant import Verdict, copied, tried, verdict  # noqa: E402
from planted import MUTANTS, Mutant  # noqa: E402

#: Where chance decides: noise, samplers, thresholds that move, audits. Fixed keys and seeds; ``reseeded`` moves them.
STATISTICAL = (
    "tests/noise/test_sources.py", "tests/noise/test_sources_tails.py", "tests/noise/test_grid.py", "tests/engine/test_noise.py",
    "tests/clipping/test_budget.py", "tests/sampling/test_draws_law.py", "tests/sampling/test_draws.py",
    "tests/clipping/test_adaptive.py",
    "tests/auditing/test_step.py::test_a_sound_step_is_bounded_from_both_sides", "tests/auditing/test_statistics.py",
    "tests/auditing/test_run.py",
)  # fmt: skip


def each(work: Callable[[Any], Verdict], things: Iterable[Any]) -> Iterator[Verdict]:
    """Two at a time, each a process of one thread."""
    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(work, things)


def planted(mutant: Mutant) -> Verdict:
    with tempfile.TemporaryDirectory() as folder:
        return verdict(mutant, Path(folder))


def unplanted(test: str) -> Verdict:
    with tempfile.TemporaryDirectory() as folder:
        copied(Path(folder))
        return tried(Path(folder), [test])


def under_seed(seed: int) -> Verdict:
    with tempfile.TemporaryDirectory() as folder:
        copied(Path(folder))
        (Path(folder) / "reseeded.py").write_text((PLANTING / "reseeded.py").read_text(encoding="utf-8"))
        chosen = ["-p", "reseeded", f"--hypothesis-seed={seed}"]
        return tried(Path(folder), STATISTICAL, *chosen, RESEED=str(seed))


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def page(facts: dict[str, Any]) -> str:
    rows = ([r["name"], r["promise"], f"`{r['killed_by']}`", f"{r['seconds']:.0f}"] for r in facts["mutants"])
    where = facts["setting"]
    return WORDS.format(
        planted=len(facts["mutants"]),
        killed=sum(bool(r["killed_by"]) for r in facts["mutants"]),
        clean=len(facts["clean"]),
        table=table(["planted bug", "promise that it breaks", "first test that fails", "s"], rows),
        files=", ".join(dict.fromkeys(f"`{Path(name.split('::')[0]).stem}`" for name in STATISTICAL)),
        seeds=len(facts["seeds"]),
        alarms=sum(bool(r["killed_by"]) for r in facts["seeds"]),
        minutes=facts["seconds"]["mutants"] / 60,
        minutes_of_seeds=facts["seconds"]["seeds"] / 60,
        **where,
    )


WORDS = """# Planted bugs

Would the tests notice a bug that breaks the guarantee? {planted} such bugs are planted, one at a time, in a copy of the
package, and ordinary tests of the default suite run against the copy. **{killed} of {planted} are noticed.** The same
tests ({clean} files or parts of them) pass on a copy without a bug, so no kill is of a test that fails anyway; a copy that
can't be imported counts as no verdict, not as a kill.

{table}

## False alarms

The statistical tests ({files}) have fixed keys and seeds, or fresh keys in every run. Under {seeds} other seeds (of every
keyed stream, torch, NumPy and Hypothesis) **{alarms} runs failed**. Their must-reject twins are in the same files and were
rejected under every seed. (Of the audit of a step the sound steps are run here; its twins state their power, 1 - 1e-6.) Each file
states its false-alarm rate.

## Again

    python benchmarks/mutants.py               # the table: {minutes:.1f} minutes
    python benchmarks/mutants.py --seeds 20    # the false alarms: {minutes_of_seeds:.1f} minutes
    pytest -m slow tests/mutants               # the table as tests

The list is [tests/mutants/planted.py](../tests/mutants/planted.py): for each bug the text that is replaced. The default
suite checks that every such text still occurs once, so the list can't fall behind the source. A bug in the guarantee that
is fixed is added to it.

Measured on {processor}, two processes of one thread, torch {torch}, Python {python}.
"""


def setting() -> dict[str, str]:
    import torch

    return {"processor": f"{os.cpu_count()} cores, {platform.machine()}", "torch": torch.__version__,
            "python": platform.python_version()}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="WORD", help="bugs whose name holds it; writes nothing")
    parser.add_argument("--new", action="store_true", help="what the table doesn't have yet, into it")
    parser.add_argument("--seeds", type=int, metavar="N", help="the statistical tests under N seeds")
    parser.add_argument("--page", action="store_true", help="write the page again")
    asked = parser.parse_args()
    facts: dict[str, Any] = json.loads(FACTS.read_text(encoding="utf-8")) if FACTS.is_file() else {}
    failed, begun = False, time.monotonic()
    if asked.seeds:
        facts["seeds"] = []
        for seed, found in enumerate(each(under_seed, range(1, asked.seeds + 1)), 1):
            print(f"{found.seconds:5.1f} s  seed {seed}: {found.killed_by or 'passes'}", flush=True)
            facts["seeds"].append({"seed": seed, **vars(found)})
            failed |= bool(found.killed_by)
    elif not asked.page:
        kept = {row["name"]: row for row in facts["mutants"]} if asked.new else {}
        kept_clean = {row["tests"]: row for row in facts["clean"]} if asked.new else {}
        chosen = [m for m in MUTANTS if m.name not in kept and (not asked.only or asked.only in m.name)]
        rows = []
        for mutant, found in zip(chosen, each(planted, chosen), strict=True):
            print(f"{found.seconds:5.1f} s  {mutant.name}: {found.killed_by or 'SURVIVES'}", flush=True)
            rows.append({"name": mutant.name, "promise": mutant.promise, **vars(found)})
            failed |= not found.killed_by
        if asked.only:
            return int(failed)
        clean = []
        every = sorted({test for mutant in MUTANTS for test in mutant.tests})
        files = [test for test in every if test not in kept_clean]
        for test, found in zip(files, each(unplanted, files), strict=True):
            print(f"{found.seconds:5.1f} s  no bug, {test}: {found.killed_by or 'passes'}", flush=True)
            clean.append({"tests": test, **vars(found)})
            failed |= bool(found.killed_by)
        rows_of = kept | {row["name"]: row for row in rows}
        clean_of = kept_clean | {row["tests"]: row for row in clean}
        facts |= {"mutants": [rows_of[m.name] for m in MUTANTS], "clean": [clean_of[test] for test in every]}
        facts |= {} if asked.new else {"setting": setting()}
    if not asked.page and not asked.new:
        facts.setdefault("seconds", {})["seeds" if asked.seeds else "mutants"] = round(time.monotonic() - begun)
    if not asked.page:
        FACTS.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    if {"mutants", "seeds"} <= set(facts):
        PAGE.write_text(page(facts), encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
