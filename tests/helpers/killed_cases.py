"""A process of a run that is killed: cases of ``tests/run/test_company.py``, each run by ``ranks.py`` in a group of its own."""

from __future__ import annotations

import os
from typing import Any

import torch

from ddp_cases import refusal
from groupclip.run import start
from ranks import Rank
from run_cases import weights
from small_runs import REQUEST, SELDOM


def killed(rank: Rank, lost: int) -> Any:
    """One of them goes when the third step is counted, and the others sum."""
    run = start(REQUEST, rank.folder / "run", checkpoint_seconds=SELDOM)
    step = run.trainer.engine._step
    make_private, before = step._make_private, [weights(run)]

    def third(*args: Any) -> None:
        if run.loop.ledger.steps == 3:
            before[0] = weights(run)
            if rank.rank == lost:
                os._exit(9)
        make_private(*args)

    step._make_private = third  # pyright: ignore[reportAttributeAccessIssue]
    return {"said": refusal(run.train), "moved": not torch.equal(before[0], weights(run))}


def case_rank_0_is_killed(rank: Rank) -> Any:
    return killed(rank, 0)


def case_rank_1_is_killed(rank: Rank) -> Any:
    return killed(rank, 1)
