"""Computes what correlated noise gains and costs, and writes docs/correlated-noise.json and the tables of docs/correlated-noise.md.

    python benchmarks/correlated.py gains   # noise of prefix sums, by plan and bands: accounting alone, minutes
    python benchmarks/correlated.py costs   # time and memory of a step's noise, kept or drawn again: about a minute
    python benchmarks/correlated.py page    # the tables again, from the JSON; what was trained is of correlated_training.py
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from groupclip.noise.correlated import CorrelatedNoise
from groupclip.noise.sources import SecureNoise
from groupclip.privacy.bands import prefix_noise
from groupclip.privacy.epochs import steps_of
from groupclip.privacy.mechanism import Mechanism
from groupclip.privacy.toeplitz import coefficients, inverse

DOCS = Path(__file__).parent.parent / "docs"
FACTS, PAGE = DOCS / "correlated-noise.json", DOCS / "correlated-noise.md"
#: samples, expected batch size, epochs, epsilon
PLANS = (
    (67_000, 1_000, 3, 2.0), (67_000, 1_000, 3, 3.0), (67_000, 1_000, 3, 8.0), (67_000, 1_000, 20, 2.0), (67_000, 1_000, 20, 8.0),
    (67_000, 4_000, 20, 2.0), (67_000, 4_000, 20, 8.0), (50_000, 1_000, 5, 2.0), (50_000, 1_000, 5, 8.0), (5_000, 250, 10, 3.0),
    (5_000, 250, 10, 8.0),
)  # fmt: skip
BANDS = (2, 4, 8, 16, 32)
DELTA = 1e-5
COORDINATES, ROUNDS = 4_000_000, 7


def gains() -> list[dict[str, Any]]:
    """Noise of prefix sums over that of DP-SGD at the same epsilon, by plan and bands."""
    rows = []
    for size, batch, epochs, epsilon in PLANS:
        one = Mechanism(dataset_size=size, expected_batch_size=batch, steps=steps_of(epochs, size, batch), adjacency="zero-out")
        plain = one.calibrate(epsilon=epsilon, delta=DELTA)
        row: dict[str, Any] = {
            "samples": size, "batch": batch, "epochs": epochs, "steps": one.steps, "epsilon": epsilon, "delta": DELTA,
            "sigma": plain.noise_multiplier, "bands": {},
        }  # fmt: skip
        for bands in BANDS:
            if bands * batch > size:
                break
            plan = replace(one, bands=bands).calibrate(epsilon=epsilon, delta=DELTA)
            change = prefix_noise(plan) / prefix_noise(plain) - 1
            row["bands"][str(bands)] = {"sigma": plan.noise_multiplier, "change": change}
        rows.append(row)
        print(row, flush=True)
    return rows


def costs() -> dict[str, Any]:
    """Seconds for the noise of one step on 4 million float32 coordinates, in one thread."""
    torch.set_num_threads(1)
    total, source = torch.zeros(COORDINATES), SecureNoise()
    found: dict[str, Any] = {
        "coordinates": COORDINATES, "independent": _seconds(lambda: source.add_(total, 1.0)), "kept": {}, "draws": {},
    }  # fmt: skip
    for bands in BANDS:
        column = coefficients(1_000, bands)
        correlated = CorrelatedNoise(column)
        correlated.prepare([total])
        found["kept"][str(bands)] = _seconds(lambda c=correlated: total.add_(c.draw(source, [1.0])[0]))
        # steps whose noise would have to be drawn again: shares of less than float32's rounding can't be seen
        shares = abs(inverse(column, 1_000))
        found["draws"][str(bands)] = int((shares > 2.0**-24 * shares.max()).nonzero()[0].max())
    return {**found, "processor": f"{platform.machine()}, one thread", "torch": torch.__version__}


def _seconds(act: Callable[[], object]) -> float:
    act()
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        act()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def gain_table(facts: dict[str, Any]) -> str:
    def cells(row: dict[str, Any]) -> list[str]:
        told = {b: found["change"] for b, found in row["bands"].items()}
        least = min(told, key=told.__getitem__, default="")
        named = [f"{row['samples']:,}", f"{row['batch']:,}", f"{row['epochs']}", f"{row['steps']:,}", f"{row['epsilon']:g}"]
        marked = {b: f"{100 * change:+.0f} %" for b, change in told.items()}
        if least and told[least] < 0:
            marked[least] = f"**{marked[least]}**"
        return named + [marked.get(str(bands), "") for bands in BANDS]

    head = ["samples", "batch", "epochs", "steps", "epsilon", *(f"{bands} bands" for bands in BANDS)]
    return table(head, map(cells, facts["gains"]))


def cost_table(facts: dict[str, Any]) -> str:
    found = facts["costs"]
    one = found["independent"]
    rows = [["1", "1.0", "0", "0"]]
    rows += [
        [b, f"{seconds / one:.1f}", f"{4 * (int(b) - 1)}", f"{found['draws'][b]:,}"] for b, seconds in found["kept"].items()
    ]
    return table(["bands", "time of a step's noise", "bytes kept a parameter", "earlier draws that would be needed instead"], rows)


def trained_table(facts: dict[str, Any]) -> str:
    rows = []
    for row in facts["trained"]:
        one, other = ([f"{row[m]['mean']:.2f}", f"{row[m]['rate']:g}"] for m in ("DP-SGD", "correlated"))
        gain = f"{row['gain']:+.2f} ± {row['standard_error']:.2f}"
        rows.append([row["task"], *one, f"{row['correlated']['bands']}", *other, gain])
    return table(["task", "DP-SGD, %", "its rate", "bands", "correlated, %", "its rate", "difference, one standard error"], rows)


def with_tables(page: str, facts: dict[str, Any]) -> str:
    """Return the page with the tables of these results between their marks."""
    made_of = {"gains": gain_table, "costs": cost_table, "trained": trained_table}
    for mark, made in ((f"<!-- {name} -->", make(facts)) for name, make in made_of.items() if name in facts):
        head, _, rest = page.partition(mark)
        _, _, tail = rest.partition(mark)
        page = f"{head}{mark}\n\n{made}\n\n{mark}{tail}"
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["gains", "costs", "page"])
    what = parser.parse_args().what
    facts = json.loads(FACTS.read_text(encoding="utf-8")) if FACTS.is_file() else {}
    if what != "page":
        facts[what] = {"gains": gains, "costs": costs}[what]()
        FACTS.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    if facts:
        PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), facts), encoding="utf-8")


if __name__ == "__main__":
    main()
