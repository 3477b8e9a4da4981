"""What the CSV recipe reaches on SST-2 at epsilon 3: accuracy on held-out rows by seed, beside the commonest class, with seconds.

    python benchmarks/csv_text.py sst2.jsonl.gz --seeds 5
    python benchmarks/csv_text.py sst2.jsonl.gz --seeds 2 --task-option encoder=minilm
    python benchmarks/csv_text.py sst2.jsonl.gz --seeds 2 --no-privacy

The file has one JSON object a line, with ``split`` ("train" or another), ``text`` and ``label``. For each seed, 5,000 rows are
drawn from "train" and written to a CSV file in a temporary folder; the command line holds one in five of them out, trains on the
rest and evaluates. The seed chooses the rows: noise has none. Other options go to ``groupclip train``.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def write_rows(source: Path, target: Path, count: int, seed: int) -> None:
    with gzip.open(source, "rt", encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if row["split"] == "train"]
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows((row["text"], row["label"]) for row in random.Random(seed).sample(rows, count))


def cpu_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--seeds", type=int, default=5)
    given, more = parser.parse_known_args()
    budget = [] if "--no-privacy" in more or "--epsilon" in more else ["--epsilon", "3"]
    accuracies = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.seeds):
            table = Path(folder) / f"{seed}.csv"
            write_rows(given.data, table, given.rows, seed)
            command = [sys.executable, "-m", "groupclip.cli", "train", "--task", f"csv:{table}", *budget, *more]
            started, before = time.monotonic(), cpu_seconds()
            done = subprocess.run(
                [*command, "--json", "--out", f"{folder}/{seed}"], check=True, stdout=subprocess.PIPE, text=True
            )
            facts = json.loads(done.stdout)
            accuracies.append(facts["test_accuracy"])
            print(
                f"seed {seed}: {facts['test_accuracy']:.1%} right, {facts['majority_share']:.1%} by the commonest class; "
                f"{time.monotonic() - started:.0f} s, {cpu_seconds() - before:.0f} CPU-seconds",
                flush=True,
            )
    print(f"mean {statistics.mean(accuracies):.1%}, least {min(accuracies):.1%} of {len(accuracies)}")


if __name__ == "__main__":
    main()
