"""What one rank is refused before the ranks meet: cases of ``tests/distributed/test_refused.py``, run by ``ranks.py``.

Rank 1 is refused, and the others must hear of it at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import groupclip as gc
from ddp_cases import data, net, plan, private, refusal
from groupclip.engine import attach as attaching
from kinds import losses
from ranks import Rank


def case_refused_at_attach(rank: Rank) -> Any:
    """Each refusal is of rank 1 alone, and of another part of attach."""
    model = net(torch.float64)
    odd = rank.rank == 1

    def attach(model: nn.Module = model, groups: Any = "all-layer", **how: Any) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        gc.attach(model, optimizer, groups, plan(1.0), **how).detach()

    def with_another_optimizer() -> None:
        optimizer = torch.optim.SGD(list(model.parameters())[int(odd) :], lr=0.1)
        gc.attach(model, optimizer, "all-layer", plan(1.0)).detach()

    def that_breaks(*_: Any) -> Any:
        raise MemoryError("no room")

    mixed = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5))
    mixed.train(odd)
    told = {
        "groups": refusal(lambda: attach(groups="nothing-wise" if odd else "all-layer")),
        "clip": refusal(lambda: attach(clip="nothing" if odd else "automatic")),
        "norm": refusal(lambda: attach(mixed)),
        "optimizer": refusal(with_another_optimizer),
        "noise": refusal(lambda: attach(noise=7 if odd else None)),
    }
    built = attaching.Engine
    if odd:
        attaching.Engine = that_breaks  # pyright: ignore[reportAttributeAccessIssue]
    told["built"] = refusal(attach)
    attaching.Engine = built
    told["plain"] = all(type(p) is nn.Parameter for p in model.parameters())
    told["after"] = refusal(attach)
    return told


def case_refused_batches(rank: Rank) -> Any:
    """Batches are begun by all ranks, of one plan and in one manner, or by none."""
    mechanism, odd = plan(1.0, steps=6), rank.rank == 1

    def begin(microbatch: int = 3, mechanism: gc.Mechanism = mechanism, **how: Any) -> None:
        next(iter(gc.poisson_batches(data(torch.float64), mechanism, microbatch, **how)))

    return {
        "microbatch": refusal(lambda: begin(0 if odd else 3)),
        "other microbatch": refusal(lambda: begin(2 if odd else 3)),
        "start": refusal(lambda: begin(start=1 if odd else 0)),
        "plan": refusal(lambda: begin(mechanism=plan(2.0 if odd else 1.0, steps=6))),
        "key": refusal(lambda: begin(key=bytes(32) if odd else None)),
        "users": refusal(lambda: _begin_of_users(odd)),
        "after": refusal(begin),
    }


def _begin_of_users(odd: bool) -> None:
    mechanism = gc.Mechanism(dataset_size=4, expected_batch_size=2, steps=2, noise_multiplier=1.0, unit="user")
    users = [row % 4 if odd else row // 4 for row in range(13)]
    next(iter(gc.logical_batches(data(torch.float64), mechanism, 3, users=users)))


def case_refused_states(rank: Rank) -> Any:
    """A state is loaded by all ranks, or by none."""
    _, _, engine, _ = private()
    odd, state = rank.rank == 1, engine.state_dict()
    state["ledger"]["steps"]["user"] = 2
    edited = {**state, "ledger": {**state["ledger"], "steps": {"groupclip": 0, "user": 9}}}
    fewer = {**state, "ledger": {**state["ledger"], "steps": {"groupclip": 0, "user": 1}}}
    told = {
        "edited": refusal(lambda: engine.load_state_dict(edited if odd else state)),
        "fewer": refusal(lambda: engine.load_state_dict(fewer if odd else state)),
        "steps": engine.ledger.steps,
        "right": refusal(lambda: engine.load_state_dict(state)),
        "loaded": engine.ledger.steps,
    }
    engine.detach()
    return told


def case_out_of_step(rank: Rank) -> Any:
    """Rank 1 begins batches where the others attach."""
    mechanism, odd = plan(1.0), rank.rank == 1
    model = net(torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def act() -> None:
        if odd:
            next(iter(gc.poisson_batches(data(torch.float64), mechanism)))
        else:
            gc.attach(model, optimizer, "all-layer", mechanism)

    return refusal(act)


def case_stages(rank: Rank) -> Any:
    """Each rank attaches another part of a model."""
    torch.manual_seed(0)
    stage = nn.Linear(5, 5) if rank.rank == 0 else nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    return refusal(lambda: gc.attach(stage, optimizer, "all-layer", plan(1.0)))


def case_goes_on(rank: Rank) -> Any:
    """After all of these refusals the ranks are in step."""
    _, optimizer, engine, mechanism = private()
    for batch in gc.poisson_batches(data(torch.float64), mechanism, 3):
        for micro in batch:
            engine.backward(losses(engine.model, micro))
        optimizer.step()
        optimizer.zero_grad()
    told = engine.ledger.steps_by_sampler
    engine.detach()
    return told
