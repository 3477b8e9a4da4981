"""SST-2 for the scaled experiment: its records, which of them are private, and batches of them.

A record is one phrase of a film review. Most were cut from the same sentences, so record-level privacy says nothing of a whole
sentence, or of its author.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..source import MissingSource

SST2 = "sst2.jsonl.gz"
LONGEST = 48  # word pieces with [CLS] and [SEP], a public constant: longer texts are cut

Tensors = tuple[Tensor, Tensor, Tensor]
Text = tuple[str, int]


@dataclass(frozen=True)
class Phrase:
    """A text as word pieces, and 1 for a positive one."""

    ids: tuple[int, ...]
    label: int
    place: int = 0  # in its file


@dataclass(frozen=True, eq=False)
class Read:
    """A text as the word vectors ``[T, width]`` that frozen blocks make of it, and its label. What training sees."""

    states: Tensor
    label: int
    place: int = 0  # in its file


def read_sst2(folder: Path) -> tuple[list[Text], list[Text]]:
    """Return (text, label) of the train and the dev set, in the order of the file. ``MissingSource`` if there is none."""
    file = folder / SST2
    if not file.exists():
        raise MissingSource(f"there is no {file}: a gzip file of JSON lines with split, text and label")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        found = [json.loads(line) for line in lines]
    train, dev = ([(r["text"], r["label"]) for r in found if r["split"] == split] for split in ("train", "dev"))
    return train, dev


def balanced(records: Sequence[Read], each: int) -> list[Read]:
    """Return the first ``each`` records of either label, in file order: the definition of a data set, whose size is public.

    They stay in the order in which they came.

    Raises:
        ValueError: a label has fewer.
    """
    places = {label: sorted(r.place for r in records if r.label == label)[:each] for label in (0, 1)}
    if min(map(len, places.values())) < each:
        raise ValueError(f"fewer than {each} texts of a label: {[len(p) for p in places.values()]}")
    chosen = {*places[0], *places[1]}
    return [record for record in records if record.place in chosen]


def encode(tokenizer: Any, texts: Sequence[Text]) -> list[Phrase]:
    """Return records by increasing length.

    A Poisson draw comes in the order of the records, so micro-batches hold texts of about one length and little padding.
    The order is no part of the mechanism: who is drawn, and what a record adds, doesn't depend on it.
    """
    coded = tokenizer.encode_batch([text for text, _ in texts])
    found = [
        Phrase(tuple(c.ids[:LONGEST]), label, place)
        for place, (c, (_, label)) in enumerate(zip(coded, texts, strict=True))
    ]
    return sorted(found, key=lambda phrase: len(phrase.ids))


def phrases(records: Sequence[Phrase]) -> Tensors:
    """ids, mask ``[B, T]`` and labels ``[B]``; T is the longest text's."""
    longest = max(len(record.ids) for record in records)
    ids = torch.zeros(len(records), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, record in enumerate(records):
        ids[row, : len(record.ids)] = torch.tensor(record.ids)
        mask[row, : len(record.ids)] = 1
    return ids, mask, torch.tensor([record.label for record in records])


def collate(records: Sequence[Read]) -> Tensors:
    """Word vectors ``[B, T, width]``, mask ``[B, T]`` and labels ``[B]``; T is the longest text's."""
    longest = max(len(record.states) for record in records)
    states = torch.zeros(len(records), longest, records[0].states.shape[1])
    mask = torch.zeros(len(records), longest, dtype=torch.long)
    for row, record in enumerate(records):
        states[row, : len(record.states)] = record.states
        mask[row, : len(record.states)] = 1
    return states, mask, torch.tensor([record.label for record in records])
