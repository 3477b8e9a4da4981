"""Other things that ranks do: cases of ``tests/distributed/test_others.py``, run by ``ranks.py``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import groupclip as gc
import kinds
from ddp_cases import KEY, SIZE, plan, private, refusal, train
from fsdp_cases import cut
from groupclip.distributed import release
from groupclip.noise.sources import InsecureNoise
from kinds import Run, build, losses
from ranks import Rank

RUN = Run("net", "uniform:2")


def case_without_a_wrapper(rank: Rank) -> Any:
    """The same weights on every rank, and the engine alone sums."""
    return train(build("net", torch.float64), RUN)


def case_wrapped_otherwise(rank: Rank) -> Any:
    ways: dict[str, dict[str, Any]] = {
        "unused": {"find_unused_parameters": True},
        "views": {"gradient_as_bucket_view": True},
        "buffers": {"broadcast_buffers": False},
    }
    told: dict[str, Any] = {
        way: train(DistributedDataParallel(build("net", torch.float64), **how), RUN) for way, how in ways.items()
    }
    static = DistributedDataParallel(build("net", torch.float64), static_graph=True)
    told["static"] = refusal(lambda: train(static, RUN))
    return told


class Images(nn.Module):
    """Convolutions whose weights lie channels last, a buffer, and a layer that takes no part."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)
        self.idle = nn.Linear(4, 4)
        self.register_buffer("mean", torch.full((1, 3, 1, 1), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.conv(x - self.mean)).mean((2, 3)))


def images(order: torch.memory_format = torch.channels_last) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Images().double().to(memory_format=order), torch.randn(6, 3, 5, 5, dtype=torch.float64)


def case_strides_and_idle_layers(rank: Rank) -> Any:
    told: dict[str, Any] = {}
    for way in ("whole", "cut"):
        model, x = images(torch.channels_last if way == "whole" else torch.contiguous_format)
        model = DistributedDataParallel(model) if way == "whole" else cut(rank, model, blocks=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        engine = gc.attach(model, optimizer, "layer-wise", plan(expected=1))
        engine.backward(model(x[rank.rank :: rank.size]).square().sum(1))
        grads = {n: p.grad for n, p in engine.model.named_parameters()} if way == "whole" else {}
        optimizer.step()
        cut_grads = {n: p.grad.full_tensor() for n, p in engine.model.named_parameters() if way == "cut"}
        told[way] = {n: p.grad.clone() for n, p in engine.model.named_parameters()} if grads else cut_grads
        engine.detach()
    return told


def case_half_precision(rank: Rank) -> Any:
    """Which dtypes are summed over ranks, where weights are in bfloat16; and what comes of it."""
    summed: set[torch.dtype] = set()
    reduce = torch.distributed.reduce

    def watched(tensor: Tensor, **how: Any) -> Any:
        summed.add(tensor.dtype)
        return reduce(tensor, **how)

    torch.distributed.reduce = watched
    try:
        told = train(DistributedDataParallel(build("net", torch.bfloat16)), Run("net", "uniform:2", torch.bfloat16))
    finally:
        torch.distributed.reduce = reduce
    return {"summed": summed, "sums": told["sums"][0]}


def case_noise_of_other_sources(rank: Rank) -> Any:
    release.ROOM, before = 1000, release.ROOM
    told = {}
    try:
        for name, source in (("insecure", InsecureNoise(7)), ("hardened", gc.HardenedNoise())):
            model = DistributedDataParallel(nn.Linear(100, 120, bias=False))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            mechanism = gc.Mechanism(dataset_size=SIZE, expected_batch_size=1, steps=3, noise_multiplier=2.0)
            engine = gc.attach(model, optimizer, "all-layer", mechanism, noise=source)
            engine.backward(0 * model(torch.randn(2, 100)).sum(1))
            optimizer.step()
            grad = engine.model.weight.grad
            assert grad is not None
            told[name] = grad.flatten().double() / engine.noise_stds["all"]
            told[name + " claims"] = refusal(
                lambda engine=engine: engine.epsilon(delta=1e-5, sampling_vouched_by_user=True)
            )
            engine.detach()
    finally:
        release.ROOM = before
    return told


def case_one_rank_begins_its_batch_again(rank: Rank) -> Any:
    """Rank 1 fails in the middle of its part, gives it up and takes it again; the others wait at the step."""
    model, optimizer, engine, mechanism = private()
    for batch in gc.poisson_batches(kinds.data("net", torch.float64), mechanism, 2):
        for number, micro in enumerate(batch):
            engine.backward(losses(model, micro))
            if rank.rank == 1 and number == 0:
                break
        if rank.rank == 1:
            engine.discard()
            for micro in batch.again(microbatch=1):
                engine.backward(losses(model, micro))
        optimizer.step()
        optimizer.zero_grad()
    told = engine.ledger.steps_by_sampler
    engine.detach()
    return {"steps": told}


def case_adaptive(rank: Rank) -> Any:
    """Thresholds that move by a noisy count of all ranks' samples."""
    told: dict[str, Any] = {}
    for way in ("whole", "cut"):
        model = build("net", torch.float64)
        model = DistributedDataParallel(model) if way == "whole" else cut(rank, model)
        told[way] = moved(model)
    return told


def moved(model: nn.Module) -> list[dict[str, float]]:
    """The thresholds after each of three steps, which so little noise moves by 1e-6 at most."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = gc.attach(model, optimizer, "uniform:2", plan(1e-9, steps=3), thresholds=gc.Adaptive())
    found = []
    for batch in gc.poisson_batches(kinds.data("net", torch.float64), plan(1e-9, steps=3), 2, key=KEY):
        for micro in batch:
            engine.backward(losses(model, micro))
        optimizer.step()
        optimizer.zero_grad()
        found.append(dict(engine.thresholds))
    engine.detach()
    return found


def case_workers(rank: Rank) -> Any:
    """Worker processes read a rank's part, also where it holds nobody. Of two ranks alone: each starts one."""
    if rank.size > 2:
        return []
    mechanism = gc.Mechanism(dataset_size=30, expected_batch_size=2, steps=6, noise_multiplier=1.0)
    batches = gc.poisson_batches(TensorDataset(torch.arange(30)), mechanism, 2, num_workers=1)
    return [[micro[0].tolist() for micro in batch] for batch in batches]
