"""Samples whose gradients were booked together: those of one cell are in the same parts of all passes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
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
        """Return ``[K]`` values of these samples in ``[B]``, zero elsewhere."""
        rows = self.rows
        assert rows is not None
        return values.new_zeros(self.batch).index_copy(0, rows.to(values.device), values)


def placed(singles: Sequence[tuple[Part, Tensor]]) -> Tensor:
    """Return values ``[1]`` of samples that ran by themselves in ``[B]``, zero elsewhere."""
    part, value = singles[0]
    rows = torch.tensor([part.row for part, _ in singles], device=value.device)
    return value.new_zeros(part.batch).index_copy(0, rows, torch.cat([value for _, value in singles]))


def cells_of(booked: dict[Key, list[tuple[Part, PerSample]]]) -> list[Cell[Key]]:
    """Return the coarsest cells in which every sample's uses are all there; mostly one, of all samples.

    ``booked`` is emptied on the way: what was put together is freed.
    """
    parts = {id(part): part for uses in booked.values() for part, _ in uses}
    if not parts:
        return []
    first = next(iter(parts.values()))
    if len(parts) == 1 and first.rows is None and first.batch:
        return [_of_all(first.batch, booked)]
    cells: list[Cell[Key]] = []
    for batch in dict.fromkeys(part.batch for part in parts.values()):
        same = {i: part for i, part in parts.items() if part.batch == batch}
        found = {key: [(part, g) for part, g in uses if id(part) in same] for key, uses in booked.items()}
        cells += [_of_nobody(found)] if not batch else _of_parts(batch, same, found)
    booked.clear()
    return cells


def _of_all(batch: int, booked: dict[Key, list[tuple[Part, PerSample]]]) -> Cell[Key]:
    together: dict[Key, list[PerSample]] = {}
    for key in list(booked):
        uses = booked.pop(key)
        together[key] = [uses[0][1]] if len(uses) == 1 else [grads for _, grads in uses]
    return Cell(batch, None, together)


def _of_nobody(found: dict[Key, list[tuple[Part, PerSample]]]) -> Cell[Key]:
    """Return an empty batch: nobody's numbers stood in (:meth:`groupclip.alone.inputs.Inputs.of`)."""
    nobody = torch.tensor([], dtype=torch.long)
    return Cell(0, None, {key: [g.select(nobody) for _, g in uses] for key, uses in found.items() if uses})


def _of_parts(
    batch: int, parts: dict[int, Part], found: dict[Key, list[tuple[Part, PerSample]]]
) -> list[Cell[Key]]:
    """Return a cell for the samples that are in the same parts."""
    if all(part.rows is None for part in parts.values()):
        return [Cell(batch, None, {key: [g for _, g in uses] for key, uses in found.items() if uses})]
    places = {i: _places(part) for i, part in parts.items()}
    members: dict[tuple[bool, ...], list[int]] = {}
    for row in range(batch):
        signature = tuple(row in places[i] for i in parts)
        if any(signature):
            members.setdefault(signature, []).append(row)
    cells: list[Cell[Key]] = []
    for rows in members.values():
        uses = {
            key: [_of(rows, places[id(part)], g) for part, g in of_key if rows[0] in places[id(part)]]
            for key, of_key in found.items()
        }
        cells.append(Cell(batch, torch.tensor(rows), {key: g for key, g in uses.items() if g}))
    return cells


def _places(part: Part) -> dict[int, int]:
    """Return sample -> which of the part's rows it is."""
    rows = range(part.batch) if part.rows is None else part.rows.tolist()
    return {row: place for place, row in enumerate(rows)}


def _of(rows: list[int], places: dict[int, int], grads: PerSample) -> PerSample:
    chosen = [places[row] for row in rows]
    if chosen == list(range(len(places))):
        return grads
    return grads.select(torch.tensor(chosen))
