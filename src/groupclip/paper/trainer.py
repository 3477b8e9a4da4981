"""Trains one cell of a table, with privacy or without, and says what came out."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..engine.attach import attach
from ..engine.averages import WeightAverage
from ..engine.engine import Engine
from ..partition.styles import PLANNED
from ..privacy.mechanism import Mechanism
from ..run.environment import environment
from ..run.optimizers import learning_rate, make_optimizer, set_rate
from ..run.steps import PrivateSteps
from ..sampling.batches import poisson_batches
from . import results
from .results import Result
from .settings import TrainSettings
from .underway import SECONDS, Underway
from .workload import Batch, Workload

Tell = Callable[[int, int], None]  # (step, steps): after every step


def train_cell(
    workload: Workload, *, experiment: str, cell: Mapping[str, Any], settings: TrainSettings, folder: Path | None = None,
    device: torch.device | str = "cpu", tell: Tell | None = None, checkpoint_seconds: float = SECONDS,
) -> Result:  # fmt: skip
    """Train the workload's model (in place) and score it on its held-out records.

    Private runs: Poisson batches of groupclip's, the engine's clipping and noise, sigma calibrated for the whole run; the
    epsilon of the result is the ledger's. Without privacy: shuffled batches of the same size, the mean of the losses,
    and as many steps. Scores are taken once, at the end: no choice depends on them.

    Args:
        experiment, cell: what the result is filed under; see :class:`groupclip.paper.results.Result`.
        folder: where results lie. A cell that has one already isn't trained again; None keeps nothing.
        tell: called after every step with its number and how many there are; may raise to stop, and then the same call
            goes on from there if there is a folder.
        checkpoint_seconds: how often the state of a cell under way is kept; see :mod:`groupclip.paper.underway`.
    """
    if folder is not None and (done := results.find(folder, experiment, cell)) is not None:
        return done
    device = torch.device(device)
    workload.model.to(device)
    _measure_from_here(device)
    underway = Underway(folder, experiment, cell, settings.to_dict(), checkpoint_seconds)
    if settings.average != "none":
        underway.average = WeightAverage(workload.model, settings.average, steps=settings.steps_on(len(workload.train)))  # type: ignore[arg-type]
    began = time.perf_counter()
    if settings.epsilon is None:
        taken, groups = _plain(workload, settings, device, tell, underway), 0
        privacy = {}
    else:
        mechanism = settings.mechanism(len(workload.train))  # type: ignore[arg-type]
        engine, taken, lost = train_privately(workload, settings, mechanism, device, tell, underway)
        privacy, groups = _spent(engine, settings.delta, lost), len(engine.partition)
    seconds = time.perf_counter() - began
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else workload.predicted_peak
    scored = workload.model if underway.average is None else underway.average.model()
    told = {**settings.to_dict(), "workload": dict(workload.description), "steps_timed": taken}
    result = Result(
        experiment=experiment, cell=dict(cell), settings=told, privacy=privacy, groups=groups,
        metrics=workload.evaluate(scored), seconds=seconds, peak_bytes=peak, environment=environment(device),
    )  # fmt: skip
    if folder is not None:
        results.save(folder, result)
        underway.end()
    return result


def train_privately(
    workload: Workload, settings: TrainSettings, mechanism: Mechanism, device: torch.device, tell: Tell | None = None,
    underway: Underway | None = None,
) -> tuple[Engine, int, int]:  # fmt: skip
    """Return the steps of the mechanism's plan that aren't charged yet.

    Dropout masks come from the operating system's randomness: with masks known beforehand, one sample more in a batch
    would visibly shift the masks of those after it.

    Returns:
        The engine, detached: its ledger and record say what was spent; how many steps were taken here; and how many were charged
        in vain, here or before: their updates were lost in crashes.
    """
    model = workload.model
    torch.manual_seed(secrets.randbits(63))
    optimizer = make_optimizer(settings, workload.model)
    engine = attach(
        model, optimizer, _groups(settings), mechanism, clip=settings.clip, thresholds=settings.thresholds, views=settings.views
    )
    assert engine.ledger is not None
    underway = Underway(None, "", {}, {}) if underway is None else underway
    updates = underway.restore(model, optimizer, engine).updates
    begun, steps = engine.ledger.steps, mechanism.steps
    model.train()
    batches = poisson_batches(workload.train, mechanism, settings.microbatch, start=begun, collate=workload.collate)
    private = PrivateSteps(
        engine,
        optimizer,
        losses=lambda microbatch: workload.losses(model, to_device(microbatch, device)),
        rate=lambda step: learning_rate(settings, step, steps),
    )
    with closing(underway), closing(private.take(batches, underway.charge)) as taken:
        for _ in range(len(batches)):
            try:
                step = next(taken)
            except Exception:
                if private.doing == "computing":  # the weights are as they were, and this step alone is lost
                    underway.save(updates, model, optimizer, engine)
                raise
            optimizer.zero_grad()
            updates += 1
            _between(step, steps, tell, underway, updates, model, optimizer, engine)
    engine.detach()
    return engine, steps - begun, steps - updates


def _plain(
    workload: Workload, settings: TrainSettings, device: torch.device, tell: Tell | None, underway: Underway
) -> int:
    """Training without privacy; how many steps were taken here. After a resume dropout has new masks."""
    model, records = workload.model, len(workload.train)  # type: ignore[arg-type]
    steps = settings.steps_on(records)
    torch.manual_seed(settings.seed)
    optimizer = make_optimizer(settings, workload.model)
    begun = underway.restore(model, optimizer, None).updates
    model.train()
    batches = shuffled(records, settings.batch_size, settings.seed)
    for step, rows in enumerate(itertools.islice(batches, begun, steps), start=begun + 1):
        for first in range(0, len(rows), settings.microbatch):
            part = [workload.train[row] for row in rows[first : first + settings.microbatch]]
            losses = workload.losses(model, to_device(workload.collate(part), device))
            (losses.sum() / len(rows)).backward()
        set_rate(optimizer, learning_rate(settings, step, steps))
        optimizer.step()
        optimizer.zero_grad()
        _between(step, steps, tell, underway, step, model, optimizer, None)
    return steps - begun


def _between(
    step: int, steps: int, tell: Tell | None, underway: Underway, updates: int, model: nn.Module, optimizer: Optimizer,
    engine: Engine | None,
) -> None:  # fmt: skip
    """Average, tell of a step, and keep the state if it is time, if somebody asked to stop, or before the scores are taken."""
    if underway.average is not None:
        underway.average.update()
    try:
        if tell is not None:
            tell(step, steps)
    except BaseException:
        underway.save(updates, model, optimizer, engine)
        raise
    if step == steps or underway.due():
        underway.save(updates, model, optimizer, engine)


def shuffled(records: int, batch_size: int, seed: int) -> Iterator[list[int]]:
    """Endless batches of ``batch_size`` rows; every record comes once before any comes again."""
    generator = torch.Generator().manual_seed(seed)
    rows = itertools.chain.from_iterable(
        torch.randperm(records, generator=generator).tolist() for _ in itertools.count()
    )
    while True:
        yield list(itertools.islice(rows, batch_size))


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its tensors on ``device``: a tensor, or a tuple, list or mapping of such."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: to_device(value, device) for name, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


def _groups(settings: TrainSettings) -> str | Mapping[str, str]:
    """Make the groups; ValueError for groups that would be planned here, because a result has to say which they were."""
    if not isinstance(settings.clipping, str) or not settings.clipping.startswith(PLANNED):
        return settings.clipping
    raise ValueError(
        f"clipping={settings.clipping!r}: plan the groups first (groupclip.plan) and give them as boundaries or as a mapping, so "
        "that the result says which they were"
    )


def _spent(engine: Engine, delta: float, lost: int) -> dict[str, Any]:
    assert engine.ledger is not None
    spent, mechanism = engine.ledger.spent(delta=delta), engine.ledger.mechanism
    return {
        "epsilon": spent.epsilon,
        "delta": delta,
        "noise_multiplier": mechanism.noise_multiplier,
        "sample_rate": mechanism.sample_rate,
        "steps": spent.steps,
        "steps_lost": lost,
        "adjacency": mechanism.adjacency,
        "accountant": spent.accountant,
        "sampling": engine.ledger.sampling,
    }


def _measure_from_here(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
