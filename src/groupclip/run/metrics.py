"""The rows of ``metrics.jsonl``: what may be seen of a step.

    step                  number of the charged step, counted from 1
    updates               steps that the weights took
    epsilon               spent so far, an upper bound (see :class:`EpsilonCurve`)
    learning_rate
    noisy_gradient_norm   group -> norm of the gradient after clipping, noise and division by the expected
                          batch size
    test_accuracy         at the evaluations fixed beforehand
    public_loss           there too, if the task has public records

Left out on purpose, because no noise covers them: losses and norms of samples, sizes of batches, and times
of steps (a step takes longer the more samples it drew).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..engine.engine import Engine
from ..errors import PrivacyViolation
from ..privacy.ledger import Ledger
from .errors import RunFailed
from .files import write_atomically

_POINTS = 50


class EpsilonCurve:
    """Epsilon after any number of steps, computed at about 50 of them.

    One evaluation takes tens of milliseconds, too long for every step. Between two points the later one's
    epsilon is given: epsilon grows with the steps, so this is never too small. ``last``: no step comes after it.
    """

    def __init__(self, ledger: Ledger, delta: float, last: int | None = None) -> None:
        self._last = ledger.mechanism.steps if last is None else last
        self._ledger, self._mechanism, self._delta = ledger, ledger.mechanism, delta
        mechanism = self._mechanism
        self._every = math.ceil(mechanism.steps / _POINTS)
        self._known: dict[tuple[int, int], float] = {}

    def at(self, step: int) -> float:
        point = min(math.ceil(step / self._every) * self._every, max(step, self._last))
        known = point, self._ledger.rounds_after(point)
        if known not in self._known:
            self._known[known] = self._mechanism.spent(delta=self._delta, steps=point, rounds=known[1]).epsilon
        return self._known[known]


def noisy_norms(engine: Engine) -> dict[str, float | None]:
    """Norm of each group's gradient between ``optimizer.step`` and ``zero_grad``, when noise is in it."""
    named = dict(engine.model.named_parameters())
    norms: dict[str, float | None] = {}
    with torch.no_grad():
        for group in engine.partition:
            grads = [named[name].grad for name in engine.partition[group]]
            norm = math.sqrt(math.fsum(float(g.float().square().sum()) for g in grads if g is not None))
            norms[group] = norm if math.isfinite(norm) else None
    return norms


def row_text(row: Mapping[str, Any]) -> str:
    """Write one line of JSON."""
    return json.dumps(row, allow_nan=False)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows that were wholly written; a line that was cut off is left out. RunFailed if one isn't of a run."""
    if not path.is_file():
        return []
    whole, _, _ = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")
    rows = []
    for line in whole.splitlines():
        try:
            row = json.loads(line)
            drawn = (row["step"], int), (row["epsilon"], (int, float)), (row["noisy_gradient_norm"], dict)
            if not all(isinstance(value, kind) for value, kind in drawn):
                raise TypeError(f"{drawn}")
        except (ValueError, KeyError, TypeError) as error:
            raise RunFailed(
                f"{path} is damaged at the line {line[:80]!r}: restore it, or move it away, and the report will lack those steps"
            ) from error
        rows.append(row)
    return rows


def steps_told(path: Path, rows: Sequence[Mapping[str, Any]], planned: int) -> int:
    """Return how many steps the rows of a file prove to have been released. A row that was cut off may have been seen: it counts.

    Raises:
        PrivacyViolation: rows that one run of ``planned`` steps can't have written, so that its steps are not known.
    """
    numbers = [row["step"] for row in rows]
    if (
        any(later <= earlier for earlier, later in itertools.pairwise([0, *numbers]))
        or max(numbers, default=0) > planned
    ):
        raise PrivacyViolation(
            f"{path} isn't the record of one run of {planned} steps: their numbers don't grow from row to row, or go past the "
            "plan, as when two processes wrote it. More may have been released than is counted, so the run can't go on: "
            "restore the file, or start again in a new folder (and count both runs)"
        )
    torn = path.is_file() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
    return max(numbers, default=0) + torn


def cut_torn_row(path: Path) -> None:
    """Take a half-written last line off, so that the next row begins a line."""
    if path.is_file():
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            write_atomically(path, whole)
