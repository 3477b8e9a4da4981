"""Several processes of gloo for tests: ``ranks.run(size, module, folder)`` starts them, each runs the module's cases in turn.

A case is a function of a :class:`Rank`, named ``case_..``; what it returns is saved, tensors and all. All ranks run all cases
in one process group, so a case must leave no collective half-done.

Importing torch and a module of cases takes seconds. So one process imports them, once, and the ranks of all groups are forks of it:
it computes nothing itself, for autograd doesn't work in a fork of a process in which it worked.
"""

from __future__ import annotations

import atexit
import datetime
import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

PATIENCE = 300  # seconds a rank waits for another
LONGEST = 600  # seconds for all ranks of a group


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
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    asked = {"size": size, "modules": modules, "folder": str(folder), "names": names, "patience": patience}
    server.stdin.write(json.dumps(asked) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    assert answer == "ended\n", f"the ranks of {modules} said {answer!r} and not that they ended"
    files = [folder / f"{rank}.pt" for rank in range(size)]  # a rank that was killed leaves none
    return [torch.load(file, weights_only=False) if file.exists() else {} for file in files]


@functools.cache
def _server() -> subprocess.Popen[str]:
    """The process that ranks are forks of. It ends when this process does, with its standard input."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    server = subprocess.Popen([sys.executable, __file__], env=environment, **pipes)
    atexit.register(server.communicate)  # closes its standard input, and waits
    return server


def serve() -> None:
    """Answer each line of standard input, a group of ranks, when all of them have ended."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what ranks print is no answer
    torch.set_num_threads(1)
    for line in sys.stdin:
        asked = json.loads(line)
        for module in asked["modules"].split(","):
            importlib.import_module(module)
        started = [_forked(rank, **asked) for rank in range(asked["size"])]
        answers.write("ended\n" if _ended(started) else "late\n")
        answers.flush()


def _forked(rank: int, *, size: int, modules: str, folder: str, names: list[str], patience: int) -> int:
    if process := os.fork():
        return process
    try:
        main(modules, rank, size, Path(folder), names, patience)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _ended(processes: list[int]) -> bool:
    """Whether all of them end in time; those that don't are killed."""
    for _ in range(LONGEST * 50):
        processes = [process for process in processes if os.waitpid(process, os.WNOHANG) == (0, 0)]
        if not processes:
            return True
        time.sleep(0.02)
    for process in processes:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    return False


def main(modules: str, rank: int, size: int, folder: Path, names: list[str], patience: int) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size,
        timeout=datetime.timedelta(seconds=patience),
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
    serve()
