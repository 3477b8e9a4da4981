"""Samples whose gradients were booked together: those of one cell are in the same parts of all passes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ..persample.base import PerSample
from .vmap import Part

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Cell(Generic[Key]):
    """Samples, and the gradients of each use of each key by them.

    Attributes:
        batch: B.
        rows: ``[K]`` which samples; None: all.
        uses: key -> one entry a use.
    """

    batch: int
    rows: Tensor | None
    uses: dict[Key, list[PerSample]]

    def placed(self, values: Tensor) -> Tensor:
        """``[K]`` values of these samples in ``[B]``, zero elsewhere."""
        rows = self.rows
        assert rows is not None
        return values.new_zeros(self.batch).index_copy(0, rows.to(values.device), values)


def cells_of(booked: Mapping[Key, Sequence[tuple[Part, PerSample]]]) -> list[Cell[Key]]:
    """The coarsest cells in which every sample's uses are all there; mostly one, of all samples."""
    parts = {id(part): part for uses in booked.values() for part, _ in uses}
    if not parts:
        return []
    first = next(iter(parts.values()))
    if len(parts) == 1 and first.rows is None and first.batch:
        together: dict[Key, list[PerSample]] = {}
        for key, found in booked.items():
            together[key] = [found[0][1]] if len(found) == 1 else [grads for _, grads in found]
        return [Cell(first.batch, None, together)]
    cells: list[Cell[Key]] = []
    if all(part.rows is None for part in parts.values()):
        for batch in dict.fromkeys(part.batch for part in parts.values()):
            uses = {key: [g for part, g in found if part.batch == batch] for key, found in booked.items()}
            if not batch:  # nobody's numbers stood in (:meth:`groupclip.alone.inputs.Inputs.of`)
                uses = {
                    key: [g.select(torch.tensor([], dtype=torch.long)) for g in found] for key, found in uses.items()
                }
            cells.append(Cell(batch, None, {key: g for key, g in uses.items() if g}))
        return cells
    for batch in dict.fromkeys(part.batch for part in parts.values()):
        same = {i: part for i, part in parts.items() if part.batch == batch}
        places = {i: _places(part) for i, part in same.items()}
        members: dict[tuple[bool, ...], list[int]] = {}
        for row in range(batch):
            signature = tuple(row in places[i] for i in same)
            if any(signature):
                members.setdefault(signature, []).append(row)
        for rows in members.values():
            uses = {
                key: [
                    _of(rows, places[id(part)], g)
                    for part, g in found
                    if id(part) in same and rows[0] in places[id(part)]
                ]
                for key, found in booked.items()
            }
            cells.append(Cell(batch, torch.tensor(rows), {key: g for key, g in uses.items() if g}))
    return cells


def _places(part: Part) -> dict[int, int]:
    """Sample -> which of the part's rows it is."""
    rows = range(part.batch) if part.rows is None else part.rows.tolist()
    return {row: place for place, row in enumerate(rows)}


def _of(rows: list[int], places: dict[int, int], grads: PerSample) -> PerSample:
    chosen = [places[row] for row in rows]
    if chosen == list(range(len(places))):
        return grads
    return grads.select(torch.tensor(chosen))
