"""MNLI, QQP, QNLI and SST-2 for RoBERTa: texts of at most 256 tokens, scored on the development sets.

Two ways to classify. *Infilling* (Gao et al. 2021, "Making pre-trained language models better few-shot learners"; Li et al.
2022 use it for the rows that the paper compares with): the text is put into a template with a masked word, and the
pretrained word predictor tells the label words apart. *Head*: a new classification layer on the first token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from .records import Columns, Records, WrongData
from .scoring import Tensors, accuracy

Item = tuple[tuple[str, ...], int]


@dataclass(frozen=True, kw_only=True)
class Template:
    """Makes a record a sentence with a gap: ``first`` text, ``middle`` with the gap as ``{mask}``, second text or ``end``.

    words: the word that fills the gap, by label; one token each, with the space before it.
    """

    middle: str
    end: str = ""
    words: tuple[str, ...]


#: Gao et al. 2021, table 1; the second text starts in lower case, the first loses its last punctuation mark.
TEMPLATES: dict[str, Template] = {
    "sst2": Template(middle=" It was{mask}.", words=(" terrible", " great")),
    "mnli": Template(middle="?{mask},", words=(" Yes", " Maybe", " No")),
    "qnli": Template(middle="?{mask},", words=(" Yes", " No")),
    "qqp": Template(middle="{mask},", words=(" No", " Yes")),
}


class Texts(Dataset[Item], Sequence[Item]):
    """Labelled texts as ((one or two texts), label)."""

    def __init__(self, records: Records, columns: tuple[str, ...]) -> None:
        self._rows = Columns(records, columns)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        *texts, label = self._rows[index]
        return tuple(texts), int(label)


@dataclass(frozen=True)
class HeadBatches:
    """Items to (ids ``[B, T]``, mask ``[B, T]``, labels ``[B]``); T is the longest text of the batch, at most ``length``."""

    tokenizer: Any
    length: int

    def __call__(self, items: list[Item]) -> Tensors:
        parts = [list(part) for part in zip(*(texts for texts, _ in items), strict=True)]
        coded = self.tokenizer(*parts, truncation=True, max_length=self.length, padding=True, return_tensors="pt")
        return coded["input_ids"], coded["attention_mask"], torch.tensor([label for _, label in items])


@dataclass(frozen=True)
class InfillBatches:
    """Items to (ids ``[B, T]``, mask ``[B, T]``, place of the gap ``[B]``, labels ``[B]``).

    Texts are cut so that the gap and the template stay: of two texts the longer one first.
    """

    tokenizer: Any
    length: int
    template: Template

    def __call__(self, items: list[Item]) -> Tensors:
        coded = [self.encode(texts) for texts, _ in items]
        longest = max(map(len, coded))
        pad = self.tokenizer.pad_token_id
        ids = torch.tensor([row + [pad] * (longest - len(row)) for row in coded])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in coded])
        gap = torch.tensor([row.index(self.tokenizer.mask_token_id) for row in coded])
        return ids, mask, gap, torch.tensor([label for _, label in items])

    def encode(self, texts: tuple[str, ...]) -> list[int]:
        """Return token ids of one record in its template, at most ``length``."""
        tokens = self.tokenizer
        before, after = (self._ids(part) for part in self.template.middle.split("{mask}"))
        if len(texts) == 2:
            texts = (texts[0].rstrip().rstrip(".?!"), " " + texts[1][:1].lower() + texts[1][1:])
        pieces = [self._ids(text) for text in texts]
        room = self.length - len(before) - len(after) - 3  # <s>, the gap, </s>
        _shorten(pieces, room)
        first, rest = pieces[0], [token for piece in pieces[1:] for token in piece]
        return [tokens.bos_token_id, *first, *before, tokens.mask_token_id, *after, *rest, tokens.eos_token_id]

    def words(self) -> Tensor:
        """Return the label words' token ids, ``[classes]``. ``WrongData`` if one isn't a single token."""
        found = [self._ids(word) for word in self.template.words]
        for word, ids in zip(self.template.words, found, strict=True):
            if len(ids) != 1:
                raise WrongData(
                    f"the label word {word!r} is {len(ids)} tokens of this tokenizer; it must be one: take RoBERTa's own"
                )
        return torch.tensor([ids[0] for ids in found])

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]


def _shorten(pieces: list[list[int]], room: int) -> None:
    """Cut the ends of the longest pieces until they fit in ``room`` together."""
    while (over := sum(map(len, pieces)) - room) > 0:
        longest = max(pieces, key=len)
        others = [len(piece) for piece in pieces if piece is not longest]
        cut = min(over, max(1, len(longest) - max(others, default=0)))
        del longest[len(longest) - cut :]


class Infilling(nn.Module):
    """A masked language model as a classifier: ids, mask and place of the gap to logits ``[B, classes]`` of the label words."""

    words: Tensor

    def __init__(self, masked: Any, words: Tensor) -> None:
        super().__init__()
        self.masked = masked
        self.register_buffer("words", words, persistent=False)

    def forward(self, ids: Tensor, mask: Tensor, gap: Tensor) -> Tensor:
        hidden = self.masked.roberta(input_ids=ids, attention_mask=mask).last_hidden_state  # [B, T, D]
        at_gap = hidden[torch.arange(len(ids), device=ids.device), gap]  # [B, D]
        return self.masked.lm_head(at_gap)[:, self.words]


def infill_logits(model: nn.Module, batch: Tensors) -> Tensor:
    """Return ``[B, classes]``."""
    ids, mask, gap, _ = batch
    return model(ids, mask, gap)


def infill_losses(model: nn.Module, batch: Tensors) -> Tensor:
    """Return cross-entropy of each record among the label words, ``[B]``."""
    return F.cross_entropy(infill_logits(model, batch), batch[-1], reduction="none")


def head_logits(model: nn.Module, batch: Tensors) -> Tensor:
    """Return ``[B, classes]``."""
    ids, mask, _ = batch
    return model(input_ids=ids, attention_mask=mask).logits


def head_losses(model: nn.Module, batch: Tensors) -> Tensor:
    """Return cross-entropy of each record, ``[B]``."""
    return F.cross_entropy(head_logits(model, batch), batch[-1], reduction="none")


def head_score(model: nn.Module, tests: dict[str, Texts], collate: HeadBatches) -> dict[str, float]:
    """Return accuracy in percent on each development set."""
    return {name: accuracy(model, test, collate, head_logits) for name, test in tests.items()}


def infill_score(model: nn.Module, tests: dict[str, Texts], collate: InfillBatches) -> dict[str, float]:
    """Return accuracy in percent on each development set."""
    return {name: accuracy(model, test, collate, infill_logits) for name, test in tests.items()}
