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
    """One record: word pieces, and 1 for a positive text."""

    ids: tuple[int, ...]
    label: int


def rows(file: Path) -> list[dict[str, Any]]:
    """Objects of a gzip file of JSON lines. ``MissingSource`` if there is none."""
    if not file.exists():
        raise MissingSource(f"there is no {file}: a gzip file of JSON lines")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def read_sst2(folder: Path) -> tuple[list[Text], list[Text]]:
    """(text, label) of the train and the dev set, in the order of the file."""
    found = rows(folder / SST2)
    train, dev = ([(r["text"], r["label"]) for r in found if r["split"] == split] for split in ("train", "dev"))
    return train, dev


def balanced(texts: Sequence[Text], each: int) -> list[Text]:
    """The first ``each`` texts of either label: the definition of a data set, whose size is public.

    Raises:
        ValueError: a label has fewer.
    """
    chosen = [[text for text in texts if text[1] == label][:each] for label in (0, 1)]
    if min(map(len, chosen)) < each:
        raise ValueError(f"fewer than {each} texts of a label: {[len(c) for c in chosen]}")
    return chosen[0] + chosen[1]


def encode(tokenizer: Any, texts: Sequence[Text]) -> list[Phrase]:
    """Records by increasing length.

    A Poisson draw comes in the order of the records, so micro-batches hold texts of about one length and little padding.
    The order is no part of the mechanism: who is drawn, and what a record adds, doesn't depend on it.
    """
    coded = tokenizer.encode_batch([text for text, _ in texts])
    phrases = [Phrase(tuple(c.ids[:LONGEST]), label) for c, (_, label) in zip(coded, texts, strict=True)]
    return sorted(phrases, key=lambda phrase: len(phrase.ids))


def collate(records: Sequence[Phrase]) -> Tensors:
    """ids, mask ``[B, T]`` and labels ``[B]``; T is the longest text's."""
    longest = max(len(record.ids) for record in records)
    ids = torch.zeros(len(records), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, record in enumerate(records):
        ids[row, : len(record.ids)] = torch.tensor(record.ids)
        mask[row, : len(record.ids)] = 1
    return ids, mask, torch.tensor([record.label for record in records])
