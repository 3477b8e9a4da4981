"""Bytes that ranks hold and hand over: cases of ``tests/distributed/test_bytes.py``, run by ``ranks.py``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import groupclip as gc
import kinds
from ddp_cases import plan
from fsdp_cases import cut
from groupclip.distributed.shards import local
from kinds import build, losses
from ranks import Rank

#: The collectives that carry weights and sums -> which argument is the larger tensor.
COLLECTIVES = {
    "reduce": 0,
    "broadcast": 0,
    "all_gather_into_tensor": 0,
    "all_gather_single": 0,
    "reduce_scatter_single": 1,
}


@contextmanager
def counted() -> Iterator[list[int]]:
    """The bytes of floating-point tensors that are handed to collectives inside."""
    found: list[int] = []
    before = {name: getattr(torch.distributed, name) for name in COLLECTIVES}

    def counting(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
            tensor = tensors[COLLECTIVES[name]]
            found.append(tensor.numel() * tensor.itemsize if tensor.is_floating_point() else 0)
            return before[name](*args, **kwargs)

        return call

    for name in COLLECTIVES:
        setattr(torch.distributed, name, counting(name))
    try:
        yield found
    finally:
        for name, function in before.items():
            setattr(torch.distributed, name, function)


def measured(model: Any, microbatches: int, kind: str = "net") -> dict[str, int]:
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trainable, lr=0.1, foreach=False)
    engine = gc.attach(model, optimizer, "uniform:2", plan(1.0, steps=2))
    for step in range(2):  # the first makes the optimizer's state
        with counted() as found:
            for part in range(microbatches):
                rows = slice(2 * part, 2 * part + 2)
                engine.backward(losses(model, kinds.data(kind, torch.float32)[rows]))
            optimizer.step()
        if not step:
            optimizer.zero_grad()
    kept = [local(p) for p in model.parameters()]
    grads = [local(p.grad) for p in optimizer.param_groups[0]["params"]]
    state = [local(v) for held in optimizer.state.values() for name, v in held.items() if name != "step"]

    def total(tensors: list[Tensor]) -> int:
        return sum(t.numel() * t.itemsize for t in tensors)

    told = {"weights": total(kept), "gradients": total(grads), "state": total(state), "handed_over": sum(found)}
    engine.detach()
    return told


RUNS = [(kind, n) for kind in ("net", "lora") for n in (1, 3)]


def case_bytes_ddp(rank: Rank) -> Any:
    return {(kind, n): measured(DistributedDataParallel(build(kind, torch.float32)), n, kind) for kind, n in RUNS}


def case_bytes_cut(rank: Rank) -> Any:
    return {(kind, n): measured(cut(rank, build(kind, torch.float32)), n, kind) for kind, n in RUNS}
