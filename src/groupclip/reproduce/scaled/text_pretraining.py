"""A public stage before SST-2: MiniLM learns what praise is from product reviews and editorials.

Why it is there: from a head that knows nothing, what all gradients of a class have in common (push every text up, or down) is
far larger than what tells texts apart, and a short private run ends at calling nearly all texts alike. RoBERTa in the paper
begins further on. Texts: sentences of Amazon reviews and New York Times editorials with ratings, from the resources of
VADER (Hutto and Gilbert 2014). Its film reviews are left out: they are of the sort that SST-2 was cut from.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..source import MissingSource
from .text_data import Phrase, Text, encode, phrases
from .text_model import Classifier, losses

PUBLIC = ("amazonReviewSnippets_GroundTruth.txt", "nytEditorialSnippets_GroundTruth.txt")
HOW = (
    "pip download --no-deps --no-binary vaderSentiment vaderSentiment==3.3.2; unpack it, and in it "
    "additional_resources/hutto_ICWSM_2014.tar.gz, and copy the file"
)
CLEAR = 0.5  # mean rating in [-4, 4] from which on a sentence counts as positive or negative


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How: AdamW, a learning rate that falls in a line, as many texts of either label."""

    epochs: int = 2
    batch_size: int = 64
    lr: float = 2e-4
    weight_decay: float = 0.01
    seed: int = 0


def public_texts(folder: Path) -> list[Text]:
    """(text in lower case, 1 if it is rated positive).

    Raises:
        MissingSource: a file isn't there.
    """
    found: list[Text] = []
    for name in PUBLIC:
        if not (folder / name).exists():
            raise MissingSource(f"there is no {folder / name}. To get it: {HOW} there")
        # only \r\n ends a line; an identifier, the rating and the text
        for line in (folder / name).read_bytes().decode("utf-8", errors="replace").split("\r\n"):
            if line:
                _, rating, text = line.split("\t", 2)
                if abs(float(rating)) >= CLEAR:
                    found.append((text.lower(), int(float(rating) > 0)))
    return found


def prepare(model: Classifier, tokenizer: Any, folder: Path, kept: Path, name: str, recipe: Recipe) -> None:
    """Run the public stage in place, or load what it gave in ``kept`` with the same recipe before."""
    from safetensors.torch import load_model, save_model

    key = hashlib.sha256(json.dumps(asdict(recipe), sort_keys=True).encode()).hexdigest()[:8]
    file = kept / f"{name}-{key}.safetensors"
    if file.exists():
        load_model(model, str(file))
        return
    records = encode(tokenizer, public_texts(folder))
    model.standardise(records[::4])
    train(model, records, recipe)
    kept.mkdir(parents=True, exist_ok=True)
    save_model(model, str(file))


def train(model: Classifier, records: Sequence[Phrase], recipe: Recipe) -> None:
    """Without privacy, on public texts alone."""
    batches = list(_batches(records, recipe))
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
    model.train()
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr * min(1.0, (step + 1) / 10) * (1 - step / len(batches))
        losses(model, phrases(batch)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _batches(records: Sequence[Phrase], recipe: Recipe) -> list[list[Phrase]]:
    """As many texts of either label in every pass, in batches of texts of about one length."""
    draw, size = random.Random(recipe.seed), recipe.batch_size
    by_label = [[record for record in records if record.label == label] for label in (0, 1)]
    each = min(map(len, by_label))
    batches: list[list[Phrase]] = []
    for _ in range(recipe.epochs):
        rows = [record for part in by_label for record in draw.sample(part, each)]
        rows.sort(key=lambda record: len(record.ids) + 4 * draw.random())
        parts = [rows[first : first + size] for first in range(0, len(rows), size)]
        draw.shuffle(parts)
        batches += parts
    return batches
