"""Progress of work that is so many equal steps: a bar on a terminal, elsewhere a line at each tenth."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Counting:
    """Shows, while entered, the number of steps that are done, which it is called with.

    Args:
        console: of standard error; says nothing if it is quiet.
        what: is being done, with a verb. steps: in all. unit: of a step, in the plural.
    """

    def __init__(self, console: Console, what: str, steps: int, unit: str) -> None:
        self._console, self._what, self._steps, self._unit = console, what, steps, unit
        self._told = 0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeRemainingColumn(),
            console=console,
            disable=console.quiet or not console.is_terminal,
        )

    def __enter__(self) -> Counting:
        if self._bar.disable:
            self._console.print(f"{self._what}, {self._steps:,} {self._unit}", markup=False, soft_wrap=True)
        self._bar.start()
        self._bar.add_task(self._what, total=self._steps)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, done: int) -> None:
        self._bar.update(self._bar.task_ids[0], completed=done)
        tenth = 10 * done // self._steps
        if self._bar.disable and tenth > self._told:
            self._told = tenth
            self._console.print(f"  {done:,} of {self._steps:,} {self._unit}", markup=False, soft_wrap=True)
