"""What ``groupclip report`` compares: the files of runs, and what their passes need, on made-up records."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..memory.passes import Sketched, kept_noise, optimizer_bytes
from ..memory.workload import default_loss
from ..models import build_model
from ..paper.bench import clock_on, interleaved, one_pass
from ..partition.groups import Partition
from ..run.build import groups_for
from ..run.errors import ConfigError
from ..run.optimizers import make_optimizer
from ..run.published import PublishedRun, read_published
from ..run.release import public_settings
from ..statement.comparison import MOST, ComparedRun


def compared(folders: Sequence[Path], rounds: int) -> list[ComparedRun]:
    """Read runs, predict the memory of their passes, and measure the time of a record.

    Args:
        folders: of runs that ``groupclip train`` finished.
        rounds: in each of which every run takes its turn; 0 measures no time.

    Raises:
        ConfigError, ValueError, RunFailed: as :func:`groupclip.run.published.read_published`; too many runs.
    """
    if len(folders) > MOST:
        raise ConfigError(f"{len(folders)} runs are given, and {MOST} can be told apart in a figure: compare fewer")
    runs = [read_published(folder) for folder in folders]
    made = [_Made(run) for run in runs]
    names = _names([run.name for run in runs])
    passes = {name: each.one_pass() for name, each in zip(names, made, strict=True)} if rounds else {}
    times = interleaved(passes, rounds, clock_on(torch.device("cpu"))) if rounds else {}
    return [
        _compared(run, name, each, statistics.median(times[name]) / each.records if name in times else None)
        for run, name, each in zip(runs, names, made, strict=True)
    ]


class _Made:
    """The model of a run with its first weights, its groups, a full micro-batch of made-up records on the CPU, and its peak."""

    def __init__(self, run: PublishedRun) -> None:
        config, facts = run.config, run.facts
        shape, vocabulary, classes = tuple(facts["input_shape"]), facts["vocabulary"], len(facts["classes"])
        self.model = build_model(
            config.model, input_shape=shape, num_classes=classes, vocabulary=vocabulary, seed=0, **config.model_options
        )
        self.optimizer = make_optimizer(config, self.model)
        self.groups: Partition = groups_for(config, shape, vocabulary, self.model, self.optimizer)
        if self.groups.names != tuple(group["name"] for group in run.record["groups"]):
            raise ConfigError(
                f"{run.name}: run.yaml makes the groups {', '.join(self.groups.names)}, and release/privacy.json has others: they "
                "are of different runs, or of another version of groupclip. Put the files of one run together"
            )
        self.records = min(config.microbatch, config.batch_size)
        rows = self.records * config.views
        generator = torch.Generator().manual_seed(0)
        inputs = (
            torch.randn(rows, *shape, generator=generator)
            if vocabulary is None
            else torch.randint(1, vocabulary, (rows, *shape), generator=generator)
        )
        self._batch = inputs, torch.randint(classes, (rows,), generator=generator)
        state, step = optimizer_bytes(self.model, self.optimizer)
        sketched = Sketched(self.model, self._batch, default_loss)
        held = sketched.static + state + kept_noise(self.model, run.record.get("bands", 1))
        self.peak_bytes = held + max(sketched.private(self.groups).peak, step)

    def one_pass(self) -> Callable[[], None]:
        """Return a forward and a backward pass with clipping."""
        return one_pass(self.model, lambda: default_loss(self.model, self._batch), self.groups)


def _names(names: Sequence[str]) -> list[str]:
    """Number runs whose folders have one name: whole paths would tell about a person's machine."""
    return [name if names.count(name) == 1 else f"{name} ({names[:i].count(name) + 1})" for i, name in enumerate(names)]


def _compared(run: PublishedRun, name: str, made: _Made, seconds: float | None) -> ComparedRun:
    record, measured = run.record, run.facts.get("evaluation", {})
    groups: list[dict[str, Any]] = record["groups"]
    return ComparedRun(
        name=name,
        task=run.config.task,
        model=run.config.model,
        unit=record["unit_of_privacy"],
        adjacency=record["adjacency"],
        epsilon=record["epsilon"],
        delta=record["delta"],
        obstacles=record["obstacles"],
        search=record["told"]["search"],
        steps=record["steps_taken"],
        expected_batch_size=record["expected_batch_size"],
        noise_multiplier=record["noise_multiplier"],
        partition=made.groups,
        thresholds={group["name"]: group["threshold"] for group in groups},
        noise_stds={group["name"]: group["noise_std"] for group in groups},
        accuracy=measured.get("accuracy"),
        chance=measured.get("commonest_class"),
        accuracies=run.accuracies,
        epsilons=[(row["step"], row["epsilon"]) for row in run.rows],
        peak_bytes=made.peak_bytes,
        seconds=seconds,
        settings=public_settings(run.config),
    )
