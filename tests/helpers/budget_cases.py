"""Ranks that draw on one budget: cases of ``tests/distributed/test_budget.py``, run by ``ranks.py``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import groupclip as gc
from ddp_cases import data, net, plan, refusal
from kinds import losses
from ranks import Rank

STEPS = 4


def budget_of(rank: Rank, name: str, epsilon: float = 50.0) -> gc.Budget:
    return gc.Budget(rank.folder / name, epsilon=epsilon, delta=1e-5)


def attached(budget: Any) -> tuple[nn.Module, Any, Any, gc.Mechanism]:
    model = net(torch.float64)
    optimizer, mechanism = torch.optim.SGD(model.parameters(), lr=0.5), plan(3.0, STEPS)
    return model, optimizer, gc.attach(model, optimizer, "uniform:2", mechanism, budget=budget), mechanism


def trained(budget: Any, steps: int) -> dict[str, Any]:
    """Take some steps; tell the state of each rank's engine."""
    model, optimizer, engine, mechanism = attached(budget)
    for _, batch in zip(range(steps), gc.poisson_batches(data(torch.float64), mechanism, 3), strict=False):
        for micro in batch:
            engine.backward(losses(model, micro))
        optimizer.step()
        optimizer.zero_grad()
    told = engine.state_dict()
    engine.detach()
    return told


def case_first_gives_it(rank: Rank) -> Any:
    return trained(None if rank.rank else budget_of(rank, "first"), 3)


def case_all_give_it(rank: Rank) -> Any:
    return trained(budget_of(rank, "all"), 2)


def case_another_gives_it(rank: Rank) -> Any:
    return refusal(lambda: attached(budget_of(rank, "another") if rank.rank else None))


def case_it_does_not_fit(rank: Rank) -> Any:
    model = net(torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    small = None if rank.rank else budget_of(rank, "small", 0.01)
    told = refusal(lambda: gc.attach(model, optimizer, "all-layer", plan(3.0, STEPS), budget=small))
    return {"told": told, "plain": all(type(p) is nn.Parameter for p in model.parameters())}


def case_it_was_closed(rank: Rank) -> Any:
    """Between two steps somebody closes the entry."""
    budget = None if rank.rank else budget_of(rank, "closed")
    model, optimizer, engine, _ = attached(budget)
    told = []
    for _ in range(2):
        engine.backward(losses(model, data(torch.float64)[:4]))
        told.append((refusal(optimizer.step), engine.ledger.steps))
        engine.discard()
        if budget is not None:
            budget.close(budget.entries[0].name)
    engine.detach()
    return told
