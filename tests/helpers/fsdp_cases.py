"""What ranks do with models that ``fully_shard`` cut: cases of ``tests/distributed/test_fsdp.py``, run by ``ranks.py``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils.data import TensorDataset

import groupclip as gc
import kinds
from ddp_cases import EVERY_KIND, EVERY_STYLE, EXPECTED, KEY, SMALL, plan, refusal, train, whole
from kinds import SIZE, Run, build, losses
from ranks import Rank


def cut(rank: Rank, model: nn.Module, blocks: bool = True, **how: Any) -> nn.Module:
    """The model, cut block by block, or whole."""
    how.setdefault("mesh", init_device_mesh("cpu", (rank.size,)))
    for block in model.blocks if blocks else ():
        fully_shard(block, **how)
    return fully_shard(model, **how)


def mesh_of_copies(rank: Rank) -> DeviceMesh:
    """Every rank has a copy of the whole; of four ranks, two have a copy together."""
    shape = (2, 2) if rank.size == 4 else (rank.size, 1)
    return init_device_mesh("cpu", shape, mesh_dim_names=("copies", "shards"))


def case_cut_every_style(rank: Rank) -> Any:
    return {run: train(cut(rank, build(run.kind, run.dtype)), run) for run in EVERY_STYLE}


def case_cut_every_kind(rank: Rank) -> Any:
    return {run: train(cut(rank, build(run.kind, run.dtype)), run) for run in EVERY_KIND}


def case_cut_small_batches(rank: Rank) -> Any:
    return train(cut(rank, build("net", torch.float64)), SMALL)


def case_cut_none_at_first(rank: Rank) -> Any:
    """The first logical batches have no sample on any rank, and a batch is given up before anything was computed."""
    model = cut(rank, build("net", torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    mechanism = plan(1.0, steps=3)
    engine = gc.attach(model, optimizer, "uniform:2", mechanism)
    engine.discard()
    before = {name: whole(param) for name, param in model.named_parameters()}
    for _ in range(2):
        optimizer.step()
        optimizer.zero_grad()
    engine.backward(losses(model, tuple(part[:2] for part in kinds.data("net", torch.float64).tensors)))
    optimizer.step()
    after = {name: whole(param) for name, param in model.named_parameters()}
    return {
        "moved": all(not torch.equal(after[name], before[name]) for name in before),
        "steps": engine.ledger.steps_by_sampler,
        "weights": after,
    }


def case_cut_in_every_way(rank: Rank) -> Any:
    """Whole, in blocks; put together anew in the backward pass or not; kept on the CPU; in copies (a mesh of two dimensions)."""
    copies = mesh_of_copies(rank)
    ways: dict[str, Any] = {
        "whole": {"blocks": False},
        "kept": {"reshard_after_forward": False},
        "again": {"reshard_after_forward": True},
        "offloaded": {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
        "copies": {"mesh": copies},
    }
    runs = [Run("net", style) for style in ("all-layer", "block-wise")]
    return {
        (way, run): train(cut(rank, build("net", run.dtype), **how), run) for way, how in ways.items() for run in runs
    }


def case_cut_in_part(rank: Rank) -> Any:
    """Blocks are cut, and the rest is on every rank."""
    model = build("net", torch.float64)
    for block in model.blocks:
        fully_shard(block, mesh=init_device_mesh("cpu", (rank.size,)))
    return train(model, Run("net", "uniform:2"))


def case_cut_mixed_precision(rank: Rank) -> Any:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    return train(cut(rank, build("net", torch.float32), mp_policy=policy), Run("net", "block-wise", torch.float32))


def case_cut_noise(rank: Rank) -> Any:
    """Gradients of zero losses: what is left is noise, of coordinates that each rank has some of; and of copies of them."""
    copies = mesh_of_copies(rank)
    told: dict[str, Any] = {}
    for way, how in (("cut", {}), ("copies", {"mesh": copies})):
        model = cut(rank, nn.Linear(200, 300, bias=False), blocks=False, **how)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mechanism = gc.Mechanism(dataset_size=SIZE, expected_batch_size=4, steps=3, noise_multiplier=2.0)
        engine = gc.attach(model, optimizer, "all-layer", mechanism)
        told[way] = []
        for batch in gc.poisson_batches(TensorDataset(torch.randn(SIZE, 200)), mechanism, 4):
            for (x,) in batch:
                engine.backward(0 * model(x).sum(1))
            optimizer.step()
            grad: Any = model.weight.grad
            told[way].append((grad.to_local() if way == "copies" else whole(grad)).flatten().clone() * 4 / 2)
            optimizer.zero_grad()
        told[way + " steps"] = engine.ledger.steps_by_sampler
        engine.detach()
    return told


def case_cut_refused(rank: Rank) -> Any:
    """What is refused of models that are cut, on all ranks; each is tried on a model of its own."""
    mechanism = plan(1.0)
    mesh = init_device_mesh("cpu", (rank.size,))
    batch = kinds.data("net", torch.float64)[:4]

    def attached(model: nn.Module, style: str = "block-wise", **how: Any) -> tuple[Any, Any]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return optimizer, gc.attach(model, optimizer, style, mechanism, **how)

    told: dict[str, Any] = {}
    model = build("net", torch.float64)
    attached(model)
    told["late"] = refusal(lambda: cut(rank, model)(batch[0]))

    model = build("net", torch.float64)
    model.head.weight = nn.Parameter(distribute_tensor(model.head.weight.detach(), mesh, [Shard(0)]))
    told["tensor parallel"] = refusal(lambda: attached(model))

    model = cut(rank, build("net", torch.float64))
    optimizer, engine = attached(model)
    engine.backward(losses(model, batch))
    if rank.rank == 1:
        model.head.weight.grad.mul_(2)
    told["scaled"] = refusal(optimizer.step)
    engine.discard()
    engine.backward(losses(model, batch))
    told["another optimizer"] = refusal(torch.optim.SGD(model.parameters(), lr=0.1).step)
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    told["clipped again"] = refusal(optimizer.step)
    engine.discard()
    told["not of the losses"] = refusal(lambda: losses(model, batch).sum().backward())
    engine.discard()
    told["penalty"] = refusal(
        lambda: engine.backward(losses(model, batch) + model.blocks[0].inner.weight.square().sum().full_tensor())
    )
    told["layer by itself"] = refusal(lambda: engine.backward(losses(model, batch) + model.head.bias.sum()))
    told["steps"] = engine.ledger.steps
    engine.backward(losses(model, batch))
    optimizer.step()
    told["after"] = engine.ledger.steps
    engine.detach()
    told["plain"] = all(type(p).__name__ == "DTensor" and p.grad is None for p in model.parameters())
    told["trains without an engine"] = refusal(lambda: losses(model, batch).sum().backward())

    optimizer.zero_grad()
    told["clipping alone"] = refusal(lambda: gc.attach(model, None, "all-layer", None))

    model = cut(rank, Chooses().double(), blocks=False)
    told["paths"] = refusal(lambda: attached(model, "all-layer")[1].backward(model(batch[0])))
    return told


class Chooses(nn.Module):
    """Samples take different paths through it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).mean((1, 2))
        return h if x.sum() > 0 else 2 * h


def case_cut_by_loss_backward(rank: Rank) -> Any:
    """The user's own ``loss.backward()``, and evaluation between steps."""
    model = cut(rank, build("net", torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    mechanism = plan()
    engine = gc.attach(model, optimizer, "uniform:2", mechanism, loss_reduction="mean")
    told: dict[str, Any] = {"sums": [], "weights": []}
    named = dict(model.named_parameters())
    for batch in gc.poisson_batches(kinds.data("net", torch.float64), mechanism, 3, key=KEY):
        for micro in batch:
            losses(model, micro).mean().backward() if len(micro[0]) else engine.backward(losses(model, micro))
            with torch.no_grad():
                model(kinds.data("net", torch.float64)[:2][0])
        optimizer.step()
        told["sums"].append({n: whole(p.grad) * EXPECTED for n, p in named.items()})
        told["weights"].append({n: whole(p) for n, p in named.items()})
        optimizer.zero_grad()
    engine.detach()
    return told


def case_wrappers(rank: Rank) -> Any:
    """Other wrappers than those that are known."""

    def attach(model: nn.Module) -> None:
        gc.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "all-layer", plan(1.0))

    several = nn.DataParallel(build("net", torch.float64))
    several.device_ids = [0, 1]  # as on a machine with two
    engine_of_deepspeed = type("DeepSpeedEngine", (kinds.Net,), {"__module__": "deepspeed.runtime.engine"})
    return {
        "DataParallel": refusal(lambda: attach(several)),
        "DeepSpeed": refusal(lambda: attach(engine_of_deepspeed())),
        "FSDP1": refusal(
            lambda: attach(FullyShardedDataParallel(build("net", torch.float64), device_id=torch.device("cpu")))
        ),
    }
