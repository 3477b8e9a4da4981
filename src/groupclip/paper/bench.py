"""How long a pass takes, and what it holds, over plain training: every way takes its turn in every round of one run."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.attach import attach
from ..memory import measure
from ..memory.workload import Loss, default_loss, number_of_samples
from ..partition.choose import partition
from ..partition.groups import Partition
from ..partition.styles import PLANNED

PLAIN = "without privacy"
Run = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One way of clipping.

    groups: M; 0 without privacy. ratio: median over rounds of its seconds over those of the plain pass of that round;
    least, most: of all rounds. seconds: median. per_second: samples. peak_bytes: most live bytes beside parameters and
    buffers, the batch included.
    """

    style: str
    groups: int
    ratio: float
    least: float
    most: float
    seconds: float
    per_second: float
    peak_bytes: int


def bench(
    model: nn.Module, batch: Any, styles: Sequence[str], *, rounds: int = 7, loss: Loss = default_loss
) -> list[Timing]:
    """Time forward and backward passes over one batch, plain and clipped in groups. No noise is added, and nothing is stepped.

    Args:
        model: not attached; each way runs on its own copy, on the device where the model and the batch are.
        batch, loss: as of :func:`groupclip.plan`.
        styles: as of :func:`groupclip.partition`.
        rounds: each begins with another way.

    Raises:
        ValueError: no round, or a style that the model doesn't have.
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds} must be at least 1")
    groups: dict[str, Partition | None] = {
        PLAIN: None,
        **{style: partition(model, style, batch=batch if style.startswith(PLANNED) else None) for style in styles},
    }
    peaks = {way: measure(model, batch, of, loss=loss).peak for way, of in groups.items()}
    device = next(model.parameters()).device

    def prepared(of: Partition | None) -> Run:
        own = copy.deepcopy(model)
        return waiting(one_pass(own, lambda: loss(own, batch), of), device)

    times = interleaved({way: prepared(of) for way, of in groups.items()}, rounds, clock_on(device))
    samples = number_of_samples(batch)
    return [timing(way, 0 if of is None else len(of), times, samples, peaks[way]) for way, of in groups.items()]


def timing(way: str, groups: int, times: Mapping[str, Sequence[float]], samples: int, peak: int) -> Timing:
    """Make the row of one way from the seconds of every way in every round."""
    ratios = sorted(mine / plain for mine, plain in zip(times[way], times[PLAIN], strict=True))
    seconds = statistics.median(times[way])
    return Timing(
        style=way, groups=groups, ratio=statistics.median(ratios), least=ratios[0], most=ratios[-1], seconds=seconds,
        per_second=samples / seconds, peak_bytes=peak,
    )  # fmt: skip


def one_pass(model: nn.Module, losses: Callable[[], Tensor], groups: Partition | str | None) -> Run:
    """Make a forward and backward pass: of plain training (None), or with gradients clipped in groups.

    Args:
        losses: makes the forward pass, ``[B]``. It is made once here, so that what is tried out once, and caches, aren't timed.
    """
    engine = None if groups is None else attach(model, None, groups, None)

    def run() -> None:
        found = losses()
        if engine is None:
            found.sum().backward()
        else:
            engine.backward(found)
        with torch._C.DisableTorchFunctionSubclass():
            for p in model.parameters():
                p.grad = None

    run()
    return run


def interleaved(
    runs: Mapping[str, Run], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Measure the seconds of each way in each round; every round begins with another way."""
    order: list[str] = list(runs)
    times: dict[str, list[float]] = {way: [] for way in runs}
    for turn in range(rounds):
        start = turn % len(order)
        for way in order[start:] + order[:start]:
            begun = clock()
            runs[way]()
            times[way].append(clock() - begun)
    return times


def clock_on(device: torch.device) -> Callable[[], float]:
    """Processor time where one thread does all the work, which other work on the machine disturbs less; else a clock."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time if alone else time.perf_counter


def waiting(run: Run, device: torch.device) -> Run:
    """Run the pass, and wait for the device to end it."""
    if device.type != "cuda":
        return run

    def timed() -> None:
        run()
        torch.cuda.synchronize(device)

    return timed
