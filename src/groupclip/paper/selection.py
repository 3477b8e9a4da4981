"""Which runs of a table or figure are meant: options that leave out what doesn't match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .catalogue import Row, Table
from .cells import Cell

Wanted = Mapping[str, Sequence[str]]  # name of a field of a cell -> the values that are wanted; nothing: all


def chosen(table: Table, wanted: Wanted, seeds: Sequence[int] = (0,)) -> list[Cell]:
    """Return the cells of a table that have a wanted value in every field, each once.

    Raises:
        ValueError: none has; says which values there are.
    """
    cells = dict.fromkeys(cell for seed in seeds for row in table.rows for cell in row.cells(seed))
    found = [cell for cell in cells if matches(cell.key(), wanted)]
    if not found:
        raise ValueError(none_of(table.name, [c.key() for c in cells], wanted))
    return found


def chosen_rows(table: Table, wanted: Wanted) -> list[Row]:
    """Return rows with at least one wanted cell; those that can't be run are among them if their model is wanted."""
    return [
        row
        for row in table.rows
        if any(matches(cell.key(), wanted) for cell in row.cells())
        or (row.clipping is None and word(row.model) in wanted.get("model", [row.model]) and "clipping" not in wanted)
    ]


def matches(cell: Mapping[str, Any], wanted: Wanted) -> bool:
    """Return whether each wanted field has one of the wanted values; a field that a cell doesn't have never has."""
    return all(field in cell and word(cell[field]) in values for field, values in wanted.items())


def word(value: Any) -> str:
    """Return a value as it is written on the command line: 2 and 2.0 are one, no epsilon is "none"."""
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def split(text: str) -> list[str]:
    """Split ``2,8`` into words. "boundaries:2,6" has a comma inside: a piece that is digits alone belongs to the one before,
    if that has a colon."""
    words: list[str] = []
    for piece in text.split(","):
        if words and piece.isdigit() and ":" in words[-1]:
            words[-1] += f",{piece}"
        else:
            words.append(piece.strip())
    return [_number(w) for w in words]


def _number(text: str) -> str:
    try:
        return word(float(text))
    except ValueError:
        return text


def none_of(name: str, cells: Sequence[Mapping[str, Any]], wanted: Wanted) -> str:
    """Return what to say where no cell has a wanted value in every field: the values that there are."""
    said = " ".join(f"--{field} {','.join(values)}" for field, values in wanted.items())
    known = {field: dict.fromkeys(word(cell[field]) for cell in cells if field in cell) for field in wanted}
    values = "; ".join(f"--{field}: {', '.join(found) or 'means nothing here'}" for field, found in known.items())
    return f"{name} has no run with {said}; {values}"
