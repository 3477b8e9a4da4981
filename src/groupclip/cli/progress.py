"""Progress on the terminal: steps, epsilon spent so far, time left, and held-out or noisy quantities only."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..privacy.figures import figure
from .signals import StopOnSignal

if TYPE_CHECKING:
    from ..run import Beginning


class Terminal:
    """Shows a run on standard error: a bar on a terminal, elsewhere a line at each evaluation."""

    def __init__(self, signals: StopOnSignal, console: Console) -> None:
        self._signals = signals
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TextColumn("{task.fields[spent]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[seen]}"),
            console=console,
            disable=console.quiet or not console.is_terminal,
        )
        self._pretraining = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeRemainingColumn(),
            console=console,
            disable=self._bar.disable,
        )
        self._task: TaskID | None = None
        self._steps, self._planned = 0, 0.0
        self._seen = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._pretraining.stop()
        self._bar.stop()

    def pretraining(self, step: int, steps: int) -> None:
        if step == 1:
            self._say(f"public pretraining on drawn letters, {steps} steps: spends no privacy")
            self._pretraining.start()
            self._pretraining.add_task("pretraining", total=steps)
        self._pretraining.update(self._pretraining.task_ids[0], completed=step)
        if step == steps:
            self._pretraining.stop()

    def begin(self, beginning: Beginning) -> None:
        config, groups = beginning.config, beginning.partition
        self._steps, self._planned = config.steps, config.epsilon
        self._say(
            f"NOT PRIVATE: {config.model} on {config.task}, a baseline without clipping and noise, {config.steps} steps of "
            f"{config.batch_size} records"
            if config.no_privacy
            else
            f"{config.model} on {config.task}: {len(groups)} group{'s' * (len(groups) > 1)} "
            f"({groups.style}), "
            f"{config.steps} steps of {config.batch_size} {beginning.unit}s on average, noise multiplier "
            f"{beginning.noise_multiplier:.4g} for epsilon {config.epsilon:g} at delta {config.delta:g}"
            + (f", correlated over {beginning.bands} bands: {beginning.rounds} rounds" if beginning.bands > 1 else "")
        )
        if beginning.done:
            lost = f"; the updates of {beginning.lost} of them were lost in a crash" if beginning.lost else ""
            self._say(f"resumed: {beginning.done} steps are charged already{lost}")
        if beginning.ends:
            self._say(beginning.ends)
        self._bar.start()
        self._task = self._bar.add_task(
            "training",
            total=config.steps,
            completed=beginning.done,
            spent=self._spent({} if config.no_privacy else {"epsilon": 0}),
            seen="",
        )

    def step(self, row: Mapping[str, Any]) -> None:
        assert self._task is not None
        if "test_accuracy" in row:
            loss = f", public loss {row['public_loss']:.3f}" if "public_loss" in row else ""
            self._seen = f"test accuracy {row['test_accuracy']:.1%}{loss}"
            if self._bar.disable:
                self._say(f"step {row['step']}/{self._steps}  {self._spent(row).partition(' of ')[0]}  {self._seen}")
        seen = self._seen or (_noisy(row) if "epsilon" in row else "")
        self._bar.update(self._task, completed=row["step"], spent=self._spent(row), seen=seen)

    def _spent(self, row: Mapping[str, Any]) -> str:
        return f"epsilon {figure(row['epsilon'])} of {self._planned:g}" if "epsilon" in row else "NOT PRIVATE"

    def stop_requested(self) -> bool:
        return self._signals.received is not None

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def _noisy(row: Mapping[str, Any]) -> str:
    """Return the norm of the whole noisy gradient, for runs and moments in which nothing else may be shown."""
    norms = [norm for norm in row["noisy_gradient_norm"].values() if norm is not None]
    return f"noisy gradient norm {sum(n * n for n in norms) ** 0.5:.3g}"
