"""Runs of several processes: cases of ``tests/run/test_company.py``, run by ``ranks.py``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.figure  # noqa: F401 (what runs import later: here once, for all ranks)
import sklearn.datasets  # noqa: F401
import torch

from ddp_cases import refusal
from groupclip import Budget
from groupclip.run import RunInterrupted, resume, start
from groupclip.run.folder import existing_folder
from groupclip.run.journal import Journal
from ranks import Rank
from small_runs import REQUEST, SELDOM, At, StopAfter


def told(outcome: Any) -> dict[str, Any]:
    return {name: getattr(outcome, name) for name in ("steps", "updates", "epsilon", "test_accuracy")}


def interrupted(act: Callable[[], Any]) -> str:
    try:
        act()
    except RunInterrupted as error:
        return str(error)
    return ""


def weights(run: Any) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return torch.cat([p.detach().flatten() for p in run.model.parameters()]).as_subclass(torch.Tensor).clone()


def case_whole(rank: Rank) -> Any:
    run = start(REQUEST, rank.folder / "whole")
    return {**told(run.train()), "weights": weights(run)}


def case_stopped(rank: Rank) -> Any:
    """The last rank alone is asked to stop, after step 3."""
    out = rank.folder.parent / "stopped"
    if out.exists():  # the second group of processes goes on with the first one's run
        run = resume(out, checkpoint_seconds=SELDOM)
        first = weights(run)
        last = 5
    else:
        run = start(REQUEST, out, checkpoint_seconds=SELDOM)
        first, last = weights(run), 3
    said = interrupted(lambda: run.train(StopAtStep(run, last) if rank.rank == rank.size - 1 else None))
    return {"said": said, "began": first, "ended": weights(run), "steps": run.loop.ledger.steps}


class StopAtStep(StopAfter):
    """Asks to stop after a step: of a rank that is told of no rows."""

    def __init__(self, run: Any, step: int) -> None:
        super().__init__(step)
        self._run = run

    def stop_requested(self) -> bool:
        return self._run.loop.ledger.steps >= self._last


def case_pretrained(rank: Rank) -> Any:
    """Only the first process pretrains."""
    request = {**REQUEST, "model": "vit-micro", "pretrain_steps": 2, "steps": 1, "batch_size": 8, "eval_every": 0}
    run = start(request, rank.folder / "pretrained")
    began = weights(run)
    run.train()
    return {"moved": not torch.equal(began, weights(run)), "weights": weights(run)}


def case_locked(rank: Rank) -> Any:
    """While the run is under way, nobody else gets in; afterwards the locks are gone."""
    out, said = rank.folder / "locked", []
    run = start(REQUEST, out)
    run.train(At(2, lambda: said.append(refusal(lambda: existing_folder(out)))))
    return {"said": said, "after": sorted(p.name for p in out.iterdir())}


def case_refused(rank: Rank) -> Any:
    """What one rank is refused, and what is left then."""
    odd = rank.rank == 1
    used = rank.folder / "used"
    used.mkdir(exist_ok=True)
    (used / "mine").write_text("kept")
    missing = {**REQUEST, "task": "csv:nowhere.csv", "model": "mlp"} if odd else REQUEST
    return {
        "settings": refusal(lambda: start({**REQUEST, "lr": 0.5 if odd else 0.25}, rank.folder / "a")),
        "data": refusal(lambda: start(missing, rank.folder / "b")),
        "used": refusal(lambda: start(REQUEST, used)),
        "nothing": refusal(lambda: resume(rank.folder / "c")),
        "left": sorted(p.name for p in rank.folder.iterdir() if p.is_dir()),
    }


class Unreadable:
    """Records of which one rank can't read any more after a while."""

    def __init__(self, records: Any, broken: bool) -> None:
        self._records, self._left = records, 60 if broken else 10**9

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, row: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise OSError("the disk is gone")
        return self._records[row]


def case_unreadable(rank: Rank) -> Any:
    """Rank 1 can't read its part of a batch. What was done before is kept, and the step stays charged."""
    out = rank.folder / "unreadable"
    run = start(REQUEST, out, checkpoint_seconds=SELDOM)
    object.__setattr__(run.loop.task, "train", Unreadable(run.loop.task.train, rank.rank == 1))
    said, failed = refusal(run.train), run.loop._steps.step
    again = resume(out)
    began = again.loop.progress
    return {"said": said, "failed": failed, "lost": began.lost, "updates": began.updates, "again": told(again.train())}


def case_on_a_budget(rank: Rank) -> Any:
    """Stopped after two steps, and gone on with."""
    out, file = rank.folder / "on-budget", rank.folder / "data.budget"
    if rank.rank == 0:
        Budget(file, epsilon=10.0, delta=1e-5)
    run = start({**REQUEST, "budget": str(file)}, out, checkpoint_seconds=SELDOM)
    interrupted(lambda: run.train(StopAtStep(run, 2)))
    half = [(entry.taken, entry.planned, entry.is_open) for entry in Budget(file).entries]
    run = resume(out)
    told = run.train().budget
    entries = None if told is None else told.entries
    return {"half": half, "entries": entries, "whole": [(entry.taken, entry.is_open) for entry in Budget(file).entries]}


def case_full_disk(rank: Rank) -> Any:
    """The journal can't take the third step."""
    charge = Journal.charge

    def full(self: Journal) -> int:
        if self.charged == 2:
            raise OSError(28, "No space left on device")
        return charge(self)

    out = rank.folder / "full"
    run = start(REQUEST, out, checkpoint_seconds=SELDOM)
    Journal.charge = full
    try:
        said = refusal(run.train)
    finally:
        Journal.charge = charge
    return {"said": said, "steps": run.loop.ledger.steps, "again": told(resume(out).train())}


def rows_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
