"""What there is to reproduce, and by which command."""

from __future__ import annotations

from typing import Any

from .catalogue import OURS, Row, Table, catalogue
from .scaled.every import experiments


def facts() -> dict[str, Any]:
    """Return tables, figures and scaled experiments, JSON-able."""
    return {
        "experiments": [
            {
                "name": table.name, "label": table.label, "title": table.title, "kind": table.kind, "notes": list(table.notes),
                "commands": list(table.commands),
                "rows": [
                    {"model": row.model, "method": row.method, "reference": row.reference, "groups": row.groups,
                     "runs": len(row.cells()), "command": table.command(row), "why_not": row.why_not}
                    for row in table.rows
                ],
            }
            for table in catalogue().values()
        ],
        "scaled": [{"name": e.name, "title": e.title, "twin": e.twin, "command": small_command(e.twin)} for e in experiments()],
    }  # fmt: skip


def small_command(twin: str) -> str:
    """Return what runs the scaled experiments that are twins of a table or figure."""
    return f"groupclip reproduce {twin} --scale small --data-folder DATA"


def text() -> str:
    """Return the same, to read."""
    lines: list[str] = []
    for table in catalogue().values():
        lines += [f"{table.name}: {table.title} ({table.kind}, {table.label})", *_rows(table)]
        lines += [f"    {command}" for command in table.commands]
        lines.append("")
    lines.append("small twins, on real data and two cores:")
    lines += [f"    {e.name}: {e.title}\n        {small_command(e.twin)}" for e in experiments()]
    return "\n".join(lines)


def _rows(table: Table) -> list[str]:
    lines = []
    for row in table.rows:
        lines.append(f"    {_words(row)}")
        lines.append(f"        {table.command(row)}" if row.clipping is not None else f"        not run: {row.why_not}")
    return lines


def _words(row: Row) -> str:
    groups = "" if row.groups is None else f" (M={row.groups})"
    source = "" if row.reference == OURS else f", {row.reference}"
    runs = len(row.cells())
    return f"{row.model} {row.method}{groups}{source}" + (f": {runs} run{'s' * (runs > 1)}" if runs else "")
