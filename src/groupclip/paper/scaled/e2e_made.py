"""Made-up tables, texts and public sentences: what the smoke test of the E2E experiment trains on."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .e2e_data import E2E
from .e2e_pretraining import PUBLIC

NAMES = ("The Mill", "Blue Spice", "Café Rouge")
FOODS = ("french", "thai", "fish")
AREAS = ("riverside", "city centre")


def write_made(folder: Path, train: int, dev: int) -> None:
    """Write tables of up to three attributes with two texts each, and sentences under the names of the public files."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    made: list[dict[str, Any]] = []
    for split in ["train"] * train + ["dev"] * dev:
        name, food, area = draw.choice(NAMES), draw.choice(FOODS), draw.choice(AREAS)
        made.append(
            {
                "split": split,
                "mr": f"name[{name}], food[{food}], area[{area}]",
                "refs": [f"{name} serves {food} food by the {area}.", f"In the {area}, {name} has {food} food."],
            }
        )
    _write(folder / E2E, made)
    words = ("a", "man", "walks", "the", "dog", "near", "his", "house", "with", "some", "friends")
    for file, fields in PUBLIC.items():
        _write(folder / file, [{f: " ".join(draw.choices(words, k=7)) for f in fields} for _ in range(20)])


def _write(file: Path, made: Sequence[dict[str, Any]]) -> None:
    with gzip.open(file, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in made)
