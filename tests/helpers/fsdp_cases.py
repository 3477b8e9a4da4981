"""What ranks do with models that ``fully_shard`` cut: cases of ``tests/distributed/test_fsdp.py``, run by ``ranks.py``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

from ddp_cases import EVERY_KIND, EVERY_STYLE, SMALL, train
from kinds import Run, build
from ranks import Rank


def cut(rank: Rank, model: nn.Module, blocks: bool = True, **how: Any) -> nn.Module:
    """The model, cut block by block, or whole."""
    how.setdefault("mesh", init_device_mesh("cpu", (rank.size,)))
    for block in model.blocks if blocks else ():
        fully_shard(block, **how)
    return fully_shard(model, **how)


def case_cut_every_style(rank: Rank) -> Any:
    return {run: train(cut(rank, build(run.kind, run.dtype)), run) for run in EVERY_STYLE}


def case_cut_every_kind(rank: Rank) -> Any:
    return {run: train(cut(rank, build(run.kind, run.dtype)), run) for run in EVERY_KIND}


def case_cut_small_batches(rank: Rank) -> Any:
    return train(cut(rank, build("net", torch.float64)), SMALL)


def case_cut_in_every_way(rank: Rank) -> Any:
    """Whole, in blocks; put together anew in the backward pass or not; kept on the CPU; in copies (a mesh of two dimensions)."""
    copies = init_device_mesh("cpu", (rank.size, 1), mesh_dim_names=("copies", "shards"))
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
