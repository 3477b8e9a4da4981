"""A rank that is lost in mid-step: the case of ``tests/distributed/test_lost.py``, run by ``ranks.py`` in a group of its own."""

from __future__ import annotations

import os
from typing import Any

import torch

from ddp_cases import data, losses, private, refusal
from ranks import Rank


def case_killed_in_mid_step(rank: Rank) -> Any:
    """The last rank goes when its step is counted and others sum; what the others hold afterwards."""
    model, optimizer, engine, _ = private()
    before = [p.detach().clone() for p in engine.model.parameters()]
    x = data(torch.float64)[:4]
    engine.backward(losses(model, x))
    if rank.rank == rank.size - 1:
        engine._step._make_private = lambda *_: os._exit(3)
    told = {"step": refusal(optimizer.step), "steps": engine.ledger.steps}
    with torch._C.DisableTorchFunctionSubclass():
        told["moved"] = any(not torch.equal(a, b) for a, b in zip(before, engine.model.parameters(), strict=True))
    told["again"] = refusal(lambda: engine.backward(losses(model, x)))
    return told
