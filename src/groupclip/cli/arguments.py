"""What the commands share about arguments."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from ..errors import CoverageError
from .flags import in_flags


@contextlib.contextmanager
def arguments_at_fault() -> Iterator[None]:
    """Make an error of values, types or files inside a wrong argument: exit code 2, with its message alone."""
    try:
        yield
    except (
        ValueError,
        TypeError,
        FileNotFoundError,
        ModuleNotFoundError,
        PermissionError,
        CoverageError,
    ) as error:
        if os.environ.get("GROUPCLIP_TRACEBACK"):
            raise
        context = click.get_current_context(silent=True)
        told = str(error) if context is None else in_flags(str(error), context.command)
        raise click.UsageError(told, context) from error


def print_json(facts: Mapping[str, Any]) -> None:
    """Print one JSON object on standard output."""
    click.echo(json.dumps(facts, indent=2, allow_nan=False))


def check_output(flag: str, path: Path | None, *, figure: bool = False) -> None:
    """Check, before any work is done, that the file of an option can be written. ValueError otherwise. ``figure``: it is a plot."""
    if path is None:
        return
    if figure and path.suffix.lower() not in (".png", ".svg"):
        raise ValueError(f"{flag} {path}: a figure is saved as .png or .svg")
    if path.is_dir():
        raise ValueError(f"{flag} {path} is a folder: name a file")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{flag} {path}: there is no folder {path.parent}; make it first")
    if not os.access(path.absolute().parent, os.W_OK):
        raise ValueError(f"{flag} {path}: nothing can be written to {path.parent}; name another folder")


def parse_thresholds(text: str | None) -> float | list[float] | dict[str, float] | None:
    """Read ``1``, ``0.5,0.5`` or ``group-1=0.5,group-2=0.7``. ValueError otherwise."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    try:
        if "=" in text:
            pairs = [part.rsplit("=", 1) for part in parts]
            return {name.strip(): float(value) for name, value in pairs}
        values = [float(part) for part in parts]
    except ValueError:
        raise ValueError(
            f"--thresholds {text!r} can't be read: give a number (R), M numbers with commas between them, "
            "or GROUP=NUMBER,..."
        ) from None
    return values[0] if len(values) == 1 else values


def parse_numbers(flag: str, text: str) -> list[float]:
    """Read ``0.5,0.5``: finite numbers with commas between them. ValueError otherwise."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = [math.nan]
    if not all(map(math.isfinite, values)):
        raise ValueError(f"{flag} {text!r} can't be read: give numbers with commas between them")
    return values


def parse_whole(flag: str, text: str) -> list[int]:
    """Read ``2,4,8``: whole numbers >= 1 with commas between them. ValueError otherwise."""
    values = parse_numbers(flag, text)
    if any(value != int(value) or value < 1 for value in values):
        raise ValueError(f"{flag} {text!r} can't be read: give whole numbers >= 1 with commas between them")
    return [int(value) for value in values]


def parse_adaptive(text: str) -> dict[str, float]:
    """Read ``0.5`` (the quantile) or ``quantile=0.5,rate=0.2,share=0.01``. ValueError otherwise."""
    pairs = [part.split("=", 1) if "=" in part else ["quantile", part] for part in text.split(",")]
    try:
        return {name.strip(): float(value) for name, value in pairs}
    except ValueError:
        raise ValueError(f"--adaptive {text!r} can't be read: give a quantile, or NAME=NUMBER,...") from None


def parse_options(flag: str, pairs: tuple[str, ...]) -> dict[str, str] | None:
    """Read ``NAME=VALUE`` pairs as a mapping; None if there are none. ValueError without an equals sign."""
    for pair in pairs:
        if "=" not in pair:
            raise ValueError(f"{flag} {pair!r} can't be read: write it as NAME=VALUE")
    found = dict(pair.split("=", 1) for pair in pairs)
    return {name.replace("-", "_"): value for name, value in found.items()} or None


ACCOUNTANT = click.option(
    "--accountant",
    type=click.Choice(("PLD", "RDP", "exact"), case_sensitive=False),
    help="Take the figure of this accountant alone. Default: the smallest figure of the sound accountants.",
)


def device_named(name: str) -> str:
    """Resolve ``auto`` to "cuda" or "cpu". ValueError for cuda where there is none."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda, but torch sees no CUDA device here; use --device cpu")
    return name
