"""Made records in the formats of the real data sets, so that a dry run goes through the same code as a real one."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..source import StandIn, needed
from .facts import DatasetFacts

SIDE = 32  # pixels of a made image
SUBJECTS = (
    "the film",
    "the plot",
    "this meal",
    "every scene",
    "the old house",
    "the music",
    "a small town",
    "the crew",
)
VERBS = ("is", "was", "seems", "will be", "has never been", "could be")
WORDS = ("warm", "dull", "slow", "bright", "worth it", "too long", "full of life", "badly lit", "quiet", "very good")
NAMES = ("The Vaults", "Blue Spice", "The Eagle", "Zizzi", "Giraffe", "Café Adriatic")
VALUES = {
    "eatType": ("pub", "coffee shop", "restaurant"),
    "food": ("French", "Indian", "English", "Italian"),
    "priceRange": ("cheap", "moderate", "high", "more than £30"),
    "customer rating": ("low", "average", "5 out of 5"),
    "area": ("city centre", "riverside"),
    "familyFriendly": ("yes", "no"),
}

Made = Callable[[random.Random, DatasetFacts], dict[str, Any]]


def made_splits(facts: DatasetFacts, source: StandIn) -> dict[str, Any]:
    """Return ``source.records`` made records of each split; labels go round, so that each class occurs if there is room."""
    make = MAKERS[facts.kind]
    found: dict[str, Any] = {}
    for split in facts.sizes:
        dice = random.Random(f"{source.seed} {facts.hub} {facts.config} {split}")
        found[split] = [make(dice, facts) for _ in range(source.records)]
        for number, record in enumerate(found[split]):
            if facts.classes:
                record[facts.columns[-1]] = number % facts.classes
    return found


def sentence(dice: random.Random) -> str:
    """Return a short made sentence."""
    return f"{dice.choice(SUBJECTS)} {dice.choice(VERBS)} {dice.choice(WORDS)} ."


def _image(dice: random.Random, facts: DatasetFacts) -> dict[str, Any]:
    image = needed("PIL.Image", "an image data set")
    pixels = np.random.default_rng(dice.getrandbits(32)).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    return {facts.columns[0]: image.fromarray(pixels)}


def _sentences(dice: random.Random, facts: DatasetFacts) -> dict[str, Any]:
    return {column: sentence(dice) for column in facts.columns[:-1]}


def _table(dice: random.Random, facts: DatasetFacts) -> dict[str, Any]:
    slots = {"name": dice.choice(NAMES)}
    slots |= {slot: dice.choice(values) for slot, values in VALUES.items() if dice.random() < 0.6}
    table, text = facts.columns
    return {table: ", ".join(f"{slot}[{value}]" for slot, value in slots.items()), text: _tell(slots)}


def _tell(slots: Mapping[str, str]) -> str:
    told = f"{slots['name']} is a {slots.get('food', '')} {slots.get('eatType', 'place')}"
    told += f" in the {slots['area']} area" if "area" in slots else ""
    return " ".join(told.split()) + (f" with {slots['priceRange']} prices." if "priceRange" in slots else ".")


MAKERS: dict[str, Made] = {"image": _image, "sentences": _sentences, "table-to-text": _table}


def corpus() -> list[str]:
    """Made text for the tokenizers of stand-ins: everything that made records can hold."""
    dice = random.Random(0)
    lines = [sentence(dice) for _ in range(200)]
    lines += [f"{slot} : {value} |" for slot, values in VALUES.items() for value in values]
    return lines + [f"name : {name} |" for name in NAMES]
