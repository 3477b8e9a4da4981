"""What ranks do under DistributedDataParallel: cases of ``tests/distributed/test_ddp.py``, run by ``ranks.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import groupclip as gc
import kinds
from groupclip.distributed import release
from groupclip.engine import shared
from groupclip.noise.sources import SecureNoise
from groupclip.sampling import batches as batches_of
from kinds import KINDS, SIZE, Run, build, losses
from ranks import Rank

STYLES = ("all-layer", "uniform:2", "block-wise", "layer-wise", "param-wise")
EVERY_STYLE = [Run("net", style, dtype) for style in STYLES for dtype in (torch.float64, torch.float32)]
EVERY_KIND = [
    Run(kind, style) for kind in KINDS if kind != "net" for style in ("all-layer", "block-wise", "param-wise")
]
SMALL = Run("net", "uniform:2", expected=1)
EXPECTED, STEPS = 7, 2
KEY = bytes(range(32))


def net(dtype: torch.dtype) -> nn.Module:
    return build("net", dtype)


def data(dtype: torch.dtype) -> TensorDataset:
    return kinds.data("net", dtype)


def plan(noise: float = 0.0, steps: int = STEPS, expected: float = EXPECTED) -> gc.Mechanism:
    return gc.Mechanism(dataset_size=SIZE, expected_batch_size=expected, steps=steps, noise_multiplier=noise)


def train(model: nn.Module, run: Run, microbatch: int = 2, **how: Any) -> dict[str, Any]:
    """Train on dealt batches without noise; return each step's sums of clipped gradients, and the weights after it."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5, momentum=0.9)
    mechanism = plan(expected=run.expected)
    engine = gc.attach(model, optimizer, run.style, mechanism, **how)
    told: dict[str, Any] = {"sums": [], "weights": [], "sizes": []}
    for batch in gc.poisson_batches(kinds.data(run.kind, run.dtype), mechanism, microbatch, key=KEY):
        told["sizes"].append([])
        for micro in batch:
            told["sizes"][-1].append(len(micro[0]))
            engine.backward(losses(model, micro))
        optimizer.step()
        named = {n: p for n, p in engine.model.named_parameters() if p.requires_grad}
        told["sums"].append({n: whole(p.grad) * run.expected for n, p in named.items()})
        told["weights"].append({n: whole(p) for n, p in named.items()})
        optimizer.zero_grad()
    engine.detach()
    return told


def whole(tensor: Any) -> Tensor:
    found = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found.detach().clone().as_subclass(Tensor)


def case_every_style(rank: Rank) -> Any:
    return {run: train(DistributedDataParallel(build(run.kind, run.dtype)), run) for run in EVERY_STYLE}


def case_every_kind(rank: Rank) -> Any:
    return {run: train(DistributedDataParallel(build(run.kind, run.dtype)), run) for run in EVERY_KIND}


def case_small_batches(rank: Rank) -> Any:
    """Batches of which some ranks, or all, have no sample."""
    return train(DistributedDataParallel(net(torch.float64)), SMALL)


def private(noise: float = 1.0, **how: Any) -> tuple[nn.Module, Any, Any, gc.Mechanism]:
    """A small model under DistributedDataParallel, with its optimizer, engine and plan."""
    model = DistributedDataParallel(net(torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    mechanism = plan(noise, steps=6)
    return model, optimizer, gc.attach(model, optimizer, "uniform:2", mechanism, **how), mechanism


def refusal(act: Callable[[], Any]) -> str:
    """What is said; all ranks must be refused, or none."""
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def case_noise(rank: Rank) -> Any:
    """Gradients of zero losses: what is left is noise, of coordinates in buckets of many owners."""
    release.ROOM, before = 1000, release.ROOM
    try:
        model = DistributedDataParallel(nn.Linear(200, 300))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mechanism = gc.Mechanism(dataset_size=SIZE, expected_batch_size=4, steps=3, noise_multiplier=2.0)
        engine = gc.attach(model, optimizer, "param-wise", mechanism, allocation="threshold")
        found = []
        for batch in gc.poisson_batches(TensorDataset(torch.randn(SIZE, 200)), mechanism, 4):
            for (x,) in batch:
                engine.backward(0 * model(x).sum(1))
            optimizer.step()
            found.append(torch.cat([p.grad.flatten() for p in model.parameters()]) * 4)
            optimizer.zero_grad()
        weights = [p.detach().clone() for p in engine.model.parameters()]
        stds = [engine.noise_stds[name] for name in ("weight", "bias")]
        engine.detach()
        return {"noise": found, "weights": weights, "stds": stds}
    finally:
        release.ROOM = before


def case_ledger(rank: Rank) -> Any:
    """One count on all ranks, of steps on batches of groupclip's, also where a rank takes its step by ``loss.backward()``."""
    model, optimizer, engine, mechanism = private(loss_reduction="sum")
    with model.no_sync():  # changes nothing
        for batch in gc.poisson_batches(data(torch.float64), mechanism, 3):
            for micro in batch:
                losses(model, micro).sum().backward() if rank.rank else engine.backward(losses(model, micro))
            optimizer.step()
            optimizer.zero_grad()
    told = {
        "steps": engine.ledger.steps_by_sampler,
        "epsilon": engine.epsilon(delta=1e-5),
        "state": engine.state_dict(),
        "planned": mechanism.epsilon(delta=1e-5),
        "weights": [p.detach().clone().as_subclass(Tensor) for p in engine.model.parameters()],
    }
    engine.detach()
    told["averages again"] = model.require_backward_grad_sync
    return told


def case_dealt(rank: Rank) -> Any:
    """What each rank gets of each batch: which samples, and in how many micro-batches."""
    mechanism = gc.Mechanism(dataset_size=30, expected_batch_size=9, steps=800, noise_multiplier=1.0)
    batches = gc.poisson_batches(TensorDataset(torch.arange(30)), mechanism, 2)
    return [[micro[0].tolist() for micro in batch] for batch in batches]


def case_dealt_users(rank: Rank) -> Any:
    users = [row // 3 for row in range(30)]
    mechanism = gc.Mechanism(dataset_size=10, expected_batch_size=5, steps=30, noise_multiplier=1.0, unit="user")
    batches = gc.logical_batches(TensorDataset(torch.arange(30)), mechanism, 4, users=users, num_workers=0)
    return [[micro[0].tolist() for micro in batch] for batch in batches]


class Silent:
    """A source of noise that groupclip doesn't know."""

    secure = True

    def add_(self, tensor: Tensor, std: float) -> None:
        """Adds nothing."""


def case_refused_at_attach(rank: Rank) -> Any:
    model = net(torch.float64)

    def attach(model: nn.Module = model, noise: float = 1.0, source: Any = None, **how: Any) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        gc.attach(model, optimizer, "all-layer", plan(noise), noise=source, **how).detach()

    other = net(torch.float64)
    if rank.rank == 1:
        with torch.no_grad():
            other.get_parameter("scale")[0] += 1e-9
    hooked = DistributedDataParallel(net(torch.float64))
    hooked.register_comm_hook(None, allreduce_hook)
    part = nn.Sequential(DistributedDataParallel(net(torch.float64)))
    told = {
        "thresholds": refusal(lambda: attach(thresholds=1.0 + rank.rank)),
        "plan": refusal(lambda: attach(noise=1.0 + rank.rank)),
        "weights": refusal(lambda: attach(other)),
        "one rank": refusal(lambda: attach(clip="automatic" if rank.rank else "abadi")),
        "key": refusal(lambda: attach(source=SecureNoise(bytes(32)))),
        "own noise": refusal(lambda: attach(source=Silent())),
        "large": refusal(lambda: attach(thresholds=1e38)),
        "hook": refusal(lambda: attach(hooked)),
        "part": refusal(lambda: attach(part)),
    }
    told["plain"] = all(type(p) is nn.Parameter for p in model.parameters())
    return told


def case_refused_steps(rank: Rank) -> Any:
    """What no rank steps on, though only one has something wrong; and that all go on after it."""
    model = DistributedDataParallel(net(torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    # 7 samples in each batch: every rank has two micro-batches of one at least
    fixed = {"sampling": "without-replacement", "adjacency": "replace-one"}
    mechanism = gc.Mechanism(dataset_size=SIZE, expected_batch_size=7, steps=6, noise_multiplier=1.0, **fixed)
    engine = gc.attach(model, optimizer, "uniform:2", mechanism)
    before = [p.detach().clone() for p in engine.model.parameters()]
    batches = iter(gc.logical_batches(data(torch.float64), mechanism, 1))
    told: dict[str, Any] = {}

    def backward(batch: Any) -> None:
        for micro in batch:
            engine.backward(losses(model, micro))

    batch = next(batches)
    backward(batch)
    if rank.rank == 1:
        engine.model.head.bias.grad.mul_(2)
    told["scaled"] = refusal(optimizer.step)
    engine.discard()
    backward(batch.again())
    if rank.rank == 1:
        engine.model.head.bias.requires_grad_(False)
    told["frozen"] = refusal(optimizer.step)
    engine.model.head.bias.requires_grad_(True)
    told["steps"] = engine.ledger.steps
    told["moved"] = any(not torch.equal(a, b) for a, b in zip(before, engine.model.parameters(), strict=True))
    engine.discard()
    backward(batch.again())
    optimizer.step()
    optimizer.zero_grad()
    told["after"] = engine.ledger.steps_by_sampler
    batch = next(batches)
    micros = list(batch)
    told["their sizes"] = [len(micro[0]) for micro in micros]
    for micro in micros[1:] if rank.rank == 1 else micros:
        engine.backward(losses(model, micro))
    optimizer.step()
    told["left out"] = engine.ledger.steps_by_sampler
    optimizer.zero_grad()
    model.require_backward_grad_sync = True
    told["averaging"] = refusal(lambda: model(data(torch.float64).tensors[0]))
    model.require_backward_grad_sync = False
    engine.detach()
    return told


def case_batches_of_each_rank(rank: Rank) -> Any:
    """Batches that were begun before there was a process group: each rank drew from all samples for itself."""
    model, optimizer, engine, mechanism = private()
    here, batches_of.ranks = batches_of.ranks, lambda: None
    try:
        batch = next(iter(gc.poisson_batches(data(torch.float64), mechanism, 3)))
    finally:
        batches_of.ranks = here
    for micro in batch:
        engine.backward(losses(model, micro))
    told = {"step": refusal(optimizer.step), "steps": engine.ledger.steps}
    engine.detach()
    return told


def case_clipping_alone(rank: Rank) -> Any:
    """Without a mechanism the wrapper does as ever: the mean over ranks of clipped sums."""
    model = DistributedDataParallel(net(torch.float64))
    engine = gc.attach(model, None, "all-layer", None, loss_reduction="sum")
    x = data(torch.float64)[2 * rank.rank : 2 * rank.rank + 2]
    losses(model, x).sum().backward()
    told = {n: p.grad.clone() for n, p in engine.model.named_parameters()}
    engine.detach()
    return told


def case_wrong_order(rank: Rank) -> Any:
    """DistributedDataParallel made after attach; and an engine that was attached before there was a process group."""
    model = net(torch.float64)
    mechanism = plan(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = gc.attach(model, optimizer, "all-layer", mechanism)
    wrapped = DistributedDataParallel(model)
    told = {"late": refusal(lambda: wrapped(data(torch.float64).tensors[0]))}
    engine.detach()
    here, shared.ranks = shared.ranks, lambda **_: None
    try:
        engine = gc.attach(model, optimizer, "all-layer", mechanism)
    finally:
        shared.ranks = here
    engine.backward(losses(model, data(torch.float64)[:4]))
    told["early"] = refusal(optimizer.step)
    told["steps"] = engine.ledger.steps
    engine.detach()
    return told
