"""E2E for a small language model: records with names taken out, and a vocabulary that private texts have no part in.

Names of restaurants (``name`` and ``near``) become placeholders in a record's table and text, each record by itself, and come
back before a generated text is scored; so did the challenge's own baseline (Dusek and Jurcicek 2016, TGen). The vocabulary
is made of public texts alone: of private ones it would leak.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..source import MissingSource

E2E = "e2e.jsonl.gz"
END = "<end>"
PLACEHOLDERS = {"name": "<name>", "near": "<near>"}
SPECIAL = (END, *PLACEHOLDERS.values())
VOCABULARY = 2048
LONGEST = 112  # tokens of a record, a public constant: what is beyond is cut
IGNORED = -100

# One plain word for each attribute: a vocabulary of public texts doesn't know "eatType". The attributes are the public format.
ATTRIBUTES = {
    "name": "name",
    "eatType": "type",
    "food": "food",
    "priceRange": "price",
    "customer rating": "rating",
    "area": "area",
    "familyFriendly": "family",
    "near": "near",
}

Tensors = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Table:
    """A meaning representation as a prompt, and the names that its placeholders stand for."""

    prompt: str
    names: tuple[tuple[str, str], ...]

    def hide(self, text: str) -> str:
        """Return the text in lower case, with placeholders for names. A name that is part of another comes after it."""
        text = text.lower()
        for placeholder, name in sorted(self.names, key=lambda pair: -len(pair[1])):
            text = text.replace(name, placeholder)
        return text

    def show(self, text: str) -> str:
        """Return the inverse of :meth:`hide`, but for capital letters."""
        for placeholder, name in self.names:
            text = text.replace(placeholder, name)
        return text


def read_table(mr: str) -> Table:
    """Return the table of ``name[The Vaults], eatType[pub]``.

    >>> read_table("name[The Vaults], eatType[pub]")
    Table(prompt='name : <name> | type : pub', names=(('<name>', 'the vaults'),))
    """
    parts, names = [], []
    for attribute, value in re.findall(r"([^,\[\]]+)\[([^\]]*)\]", mr):
        attribute, value = attribute.strip(), value.lower()
        if attribute in PLACEHOLDERS:
            names.append((PLACEHOLDERS[attribute], value))
            value = PLACEHOLDERS[attribute]
        parts.append(f"{ATTRIBUTES.get(attribute, attribute.lower())} : {value}")
    return Table(" | ".join(parts), tuple(names))


def read_e2e(file: Path) -> dict[str, list[tuple[str, list[str]]]]:
    """Return (MR, its references) by split. ``MissingSource`` if there is no such file."""
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for row in rows(file):
        found.setdefault(row["split"], []).append((row["mr"], row["refs"]))
    return found


def rows(file: Path) -> list[dict[str, Any]]:
    """Objects of a gzip file of JSON lines."""
    if not file.exists():
        raise MissingSource(f"there is no {file}: a gzip file of JSON lines")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def train_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> Any:
    """Byte-level BPE of public, lower-case texts, with ``SPECIAL`` first."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@dataclass(frozen=True)
class Record:
    """Tokens of a table, END, its text, END; the first ``prompt`` ones are given and not predicted."""

    ids: tuple[int, ...]
    prompt: int


def encode(tokenizer: Any, pairs: Sequence[tuple[str, str]], longest: int = LONGEST) -> list[Record]:
    """Return records of (prompt, text) by increasing length: micro-batches of Poisson draws then need little padding.

    The order is no part of the mechanism: who is drawn, and what a record adds, doesn't depend on it.
    """
    end = tokenizer.token_to_id(END)
    prompts = tokenizer.encode_batch([prompt for prompt, _ in pairs])
    texts = tokenizer.encode_batch([text for _, text in pairs])
    records = []
    for prompt, text in zip(prompts, texts, strict=True):
        ids = (*prompt.ids, end, *text.ids, end)[:longest]
        records.append(Record(ids, min(len(prompt.ids) + 1, longest - 1)))
    return sorted(records, key=lambda record: len(record.ids))


def collate(records: Sequence[Record]) -> Tensors:
    """ids, mask and labels ``[B, T]``, padded on the right; the label of a place is its own token, or IGNORED."""
    longest = max(len(record.ids) for record in records)
    ids = torch.zeros(len(records), longest, dtype=torch.long)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORED)
    for row, record in enumerate(records):
        length = len(record.ids)
        ids[row, :length] = torch.tensor(record.ids)
        mask[row, :length] = 1
        labels[row, record.prompt : length] = ids[row, record.prompt : length]
    return ids, mask, labels
