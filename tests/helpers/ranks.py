"""Several processes of gloo for tests: ``ranks.run(size, module, folder)`` starts them, each runs the module's cases in turn.

A case is a function of a :class:`Rank`, named ``case_..``; what it returns is saved, tensors and all. All ranks run all cases
in one process group, so a case must leave no collective half-done. Run as a program: python ranks.py MODULE RANK SIZE FOLDER
"""

from __future__ import annotations

import datetime
import importlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

PATIENCE = 300  # seconds a rank waits for another


@dataclass(frozen=True)
class Rank:
    """One of the processes: which, of how many, and a folder that all can write to."""

    rank: int
    size: int
    folder: Path


def run(
    size: int, modules: str, folder: Path, names: tuple[str, ...] = (), patience: int = PATIENCE
) -> list[dict[str, Any]]:
    """Return, of every rank, what each case returned, or ``{"error": ..}``. ``modules``: names with commas between."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "RANKS_PATIENCE": str(patience)}
    arguments = [str(size), str(folder), *names]
    commands = [[sys.executable, __file__, modules, str(rank), *arguments] for rank in range(size)]
    started = [subprocess.Popen(command, env=environment) for command in commands]
    for process in started:
        process.wait(600)
    files = [folder / f"{rank}.pt" for rank in range(size)]  # a rank that was killed leaves none
    return [torch.load(file, weights_only=False) if file.exists() else {} for file in files]


def main(modules: str, rank: int, size: int, folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size,
        timeout=datetime.timedelta(seconds=int(os.environ["RANKS_PATIENCE"])),
    )  # fmt: skip
    cases: dict[str, Callable[[Rank], Any]] = {}
    for module in modules.split(","):
        cases |= {n: v for n, v in vars(importlib.import_module(module)).items() if n.startswith("case_")}
    found: dict[str, Any] = {}
    for name, case in cases.items():
        if names and name not in names:
            continue
        try:
            found[name] = case(Rank(rank, size, folder))
        except BaseException:
            found[name] = {"error": traceback.format_exc()}
        torch.save(found, folder / f"{rank}.pt")  # at once: a case that fails may end the process
        if isinstance(found[name], dict) and "error" in found[name] and not _goes_on():
            break
    sys.stdout.flush()
    os._exit(0)  # at once: a group that has lost a rank waits when it is destroyed


def _goes_on() -> bool:
    """Whether all ranks failed in one place, so that the next case can begin."""
    try:
        torch.distributed.monitored_barrier(timeout=datetime.timedelta(seconds=10))
    except RuntimeError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:])
