"""Progress of a suite of runs, as lines on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .arguments import print_json
from .signals import StopOnSignal

if TYPE_CHECKING:
    from ..paper.results import Result
    from ..paper.runner import Job


class Lines:
    """One line when a run begins and one when it ends; on a terminal the step as well."""

    def __init__(self, signals: StopOnSignal, *, quiet: bool) -> None:
        self._signals, self._quiet = signals, quiet
        self._live = not quiet and sys.stderr.isatty()
        self._began = 0.0

    def skipped(self, job: Job, result: Result) -> None:
        self._say(f"done before: {job.title}: {scores(result)}")

    def begin(self, job: Job, number: int, jobs: int) -> None:
        self._stop_if_asked()
        self._began = time.monotonic()
        self._say(f"run {number} of {jobs}: {job.title}")

    def step(self, step: int, steps: int) -> None:
        self._stop_if_asked()
        if self._live:
            left = (time.monotonic() - self._began) / step * (steps - step)
            click.echo(f"\r  step {step} of {steps}, about {left:,.0f} s left   ", nl=step == steps, err=True)

    def done(self, job: Job, result: Result) -> None:
        self._say(f"  {scores(result)} in {result.seconds:,.0f} s")

    def _stop_if_asked(self) -> None:
        if self._signals.received is not None:
            from ..paper.runner import Stopped

            raise Stopped

    def _say(self, line: str) -> None:
        if not self._quiet:
            click.echo(line, err=True)


def scores(result: Result) -> str:
    """Return the scores of a result, as a person reads them."""
    return ", ".join(f"{name} {value:.4g}" for name, value in result.metrics.items())


def run_and_tell(jobs: Sequence[Job], out: Path, *, device: str = "cpu", as_json: bool, quiet: bool, told: str) -> None:
    """Run all jobs, tell their progress, and print their results: as JSON, or as ``told``, what they were and what comes next.

    Raises:
        click.exceptions.Exit: a signal stopped the runs; those that finished are kept.
    """
    from ..paper.runner import Stopped, run_jobs

    signals = StopOnSignal()
    try:
        with signals:
            results = run_jobs(jobs, out, Lines(signals, quiet=quiet or as_json), device=device)
    except Stopped:
        click.echo(f"groupclip: stopped; finished runs are in {out}, and the same command goes on after them", err=True)
        raise click.exceptions.Exit(signals.exit_code) from None
    if as_json:
        print_json({"results": [asdict(result) for result in results]})
    else:
        click.echo(f"{len(results)} runs {told}")
