"""A training that goes on with another number of ranks: case of ``tests/distributed/test_resume.py``, run by ``ranks.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

import groupclip as gc
import kinds
from ddp_cases import KEY, plan, whole
from fsdp_cases import cut
from kinds import build, losses
from ranks import Rank

STEPS = 3


def go_on(model: nn.Module, folder: Path, key: bytes | None) -> dict[str, Any]:
    """Load what is in the folder, take one step, and save; the three steps together are one training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    saved = sorted(folder.glob("step-*"))
    if saved:
        weights, moments = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=saved[-1])
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    mechanism = plan(steps=STEPS)
    engine = gc.attach(model, optimizer, "uniform:2", mechanism)
    if saved:
        engine.load_state_dict(json.loads((saved[-1] / "engine.json").read_text(encoding="utf-8")))
    data = kinds.data("net", torch.float64)
    batch = next(iter(gc.poisson_batches(data, mechanism, 3, start=engine.ledger.steps, key=key)))
    for micro in batch:
        engine.backward(losses(model, micro))
    optimizer.step()
    optimizer.zero_grad()
    weights, moments = get_state_dict(model, optimizer)
    state = engine.state_dict()
    at = folder / f"step-{engine.ledger.steps}"
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=at)
    (at / "engine.json").write_text(json.dumps(state), encoding="utf-8")  # every rank writes the same
    engine.detach()
    return {"state": state, "weights": {n: whole(p) for n, p in engine.model.named_parameters()}}


def case_goes_on(rank: Rank) -> Any:
    """Three ranks cut the model, two have it whole."""
    model = build("net", torch.float64)
    model = cut(rank, model) if rank.size == 3 else DistributedDataParallel(model)
    return {name: go_on(model, rank.folder.parent / name, key) for name, key in (("known", KEY),)}


def case_goes_on_cut(rank: Rank) -> Any:
    """Three ranks cut the model, and two cut it otherwise."""
    told = {}
    for name, key in (("cut known", KEY), ("cut secret", None)):
        told[name] = go_on(cut(rank, build("net", torch.float64)), rank.folder.parent / name, key)
    return told


def case_goes_on_in_secret(rank: Rank) -> Any:
    return go_on(DistributedDataParallel(build("net", torch.float64)), rank.folder.parent / "secret", None)
