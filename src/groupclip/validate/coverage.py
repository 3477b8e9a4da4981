"""Which operations use each parameter, and how its per-sample gradients are told apart and normed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..partition.groups import Partition


@dataclass(frozen=True)
class ParameterUse:
    """One row of the coverage table.

    Attributes:
        parameter, group: their names.
        operations: the operations that use it, each with the way in which its samples are kept apart: ``rule`` (closed
            form), ``vmap`` (the parameter expanded for each sample: exact, slower), ``derived`` (on parameters alone, followed
            until it meets the batch), ``one by one`` (exact, slow). Empty: not used in the passes that were made.
        norm: how its per-sample norms are computed; empty if no gradient reached it.
    """

    parameter: str
    group: str
    operations: tuple[tuple[str, str], ...]
    norm: str


class Coverage:
    """Observes passes (see :class:`groupclip.autograd.pass_state.Observer`)."""

    def __init__(self) -> None:
        self._operations: dict[str, dict[tuple[str, str], None]] = {}
        self._norms: dict[str, dict[str, None]] = {}

    def used(self, parameters: Sequence[str], operation: str, way: str) -> None:
        for name in parameters:
            self._operations.setdefault(name, {})[operation.strip("_"), way] = None

    def normed(self, parameter: str, method: str) -> None:
        self._norms.setdefault(parameter, {})[method] = None

    def rows(self, partition: Partition) -> tuple[ParameterUse, ...]:
        return tuple(
            ParameterUse(name, group, tuple(self._operations.get(name, {})), ", ".join(self._norms.get(name, {})))
            for group in partition.names
            for name in partition[group]
        )


def table(rows: Sequence[ParameterUse]) -> str:
    """Return the rows as text, in columns."""
    cells = [("parameter", "group", "operations", "norm")]
    cells += [(r.parameter, r.group, _operations(r), r.norm or "-") for r in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _operations(row: ParameterUse) -> str:
    if not row.operations:
        return "not used by these samples"
    ways: dict[str, list[str]] = {}
    for operation, way in row.operations:
        ways.setdefault(way, []).append(operation)
    return "; ".join(f"{', '.join(names)} ({way})" for way, names in ways.items())


def slow(rows: Sequence[ParameterUse], ways: Sequence[str]) -> Mapping[str, list[str]]:
    """Operation -> parameters that go one of these ways."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for operation, way in row.operations:
            if way in ways:
                found.setdefault(operation, []).append(row.parameter)
    return found
