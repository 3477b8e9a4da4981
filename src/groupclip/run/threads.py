"""How many threads torch should use for a run: one where passes are so short that threads would mostly wait for each other."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ..tasks import Task
from .config import RunConfig

PER_THREAD = 2e9
"""Floating-point operations of a micro-batch's forward pass that keep one thread busy: some tens of milliseconds."""
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def chosen_by_environment() -> bool:
    """Return whether the person set a number of threads by a variable that torch follows."""
    return any(os.environ.get(name) for name in VARIABLES)


def advised_threads(config: RunConfig, task: Task, model: nn.Module) -> int:
    """Choose 1 thread or more, up to torch's present number, by the work in a micro-batch; ``model`` is left as it is."""
    kind = torch.float32 if task.vocabulary is None else torch.int64
    sample = torch.zeros(1, *task.input_shape, dtype=kind, device="meta")
    shell = copy.deepcopy(model).to("meta")
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        shell(sample)
    work = counted.get_total_flops() * config.microbatch * config.views
    return max(1, min(torch.get_num_threads(), int(work // PER_THREAD)))


@contextlib.contextmanager
def using(threads: int) -> Iterator[None]:
    """Let torch compute in that many threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
