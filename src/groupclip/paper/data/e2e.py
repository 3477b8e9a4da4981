"""E2E NLG (Novikova, Dusek, Rieser 2017): say in a sentence what a table of at most eight attributes says.

A record is one (meaning representation, reference) pair, as ``" name : The Vaults | eatType : pub | .."``, the end-of-text
token, the reference, and the end-of-text token again: at most 100 tokens, the rest cut off. The form is that of Li and
Liang 2021 ("Prefix-tuning") and Li et al. 2022 (their public code), who also rename attributes (eatType to Type) and leave
out records above 100 tokens; here attributes keep the data set's names, and no record is left out, since how many are left
would depend on private records.

The loss of a record is the MEAN over its own reference tokens and the closing end-of-text, as in Li et al. 2022; a mean over
all tokens of a batch, as language-model code usually takes it, isn't a loss per sample: its denominator mixes records.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from .. import scores
from .records import Columns, Records
from .scoring import Tensors, evaluating

IGNORED = -100
BEAMS = 5  # as in the public code of Li et al. 2022
NEW_TOKENS = 100
PROMPTS = 16  # meaning representations generated for at once

Item = tuple[str, str]


def linearised(table: str) -> str:
    """Write ``name[The Vaults], eatType[pub]`` as ``name : The Vaults | eatType : pub``.

    >>> linearised("name[The Vaults], customer rating[5 out of 5]")
    'name : The Vaults | customer rating : 5 out of 5'
    """
    return " | ".join(f"{slot.strip()} : {value}" for slot, value in re.findall(r"([^,\[\]]+)\[([^\]]*)\]", table))


class Pairs(Dataset[Item], Sequence[Item]):
    """(meaning representation, reference) as they are published."""

    def __init__(self, records: Records, columns: tuple[str, ...]) -> None:
        self._rows = Columns(records, columns)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]


@dataclass(frozen=True)
class PairBatches:
    """Pairs to (ids ``[B, T]``, mask ``[B, T]``, labels ``[B, T]``, -100 where no token is to be predicted)."""

    tokenizer: Any
    length: int

    def __call__(self, items: list[Item]) -> Tensors:
        rows = [self._row(table, text) for table, text in items]
        longest = max(len(ids) for ids, _ in rows)
        end = self.tokenizer.eos_token_id
        ids = torch.tensor([ids + [end] * (longest - len(ids)) for ids, _ in rows])
        mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in rows])
        labels = torch.tensor([labels + [IGNORED] * (longest - len(labels)) for _, labels in rows])
        return ids, mask, labels

    def prompt(self, table: str) -> list[int]:
        """Return token ids of a table and the end-of-text token after it."""
        return [*self._ids(f" {linearised(table)}"), self.tokenizer.eos_token_id]

    def _row(self, table: str, text: str) -> tuple[list[int], list[int]]:
        prompt, told = self.prompt(table), [*self._ids(f" {text}"), self.tokenizer.eos_token_id]
        return (prompt + told)[: self.length], ([IGNORED] * len(prompt) + told)[: self.length]

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]


def losses(model: nn.Module, batch: Tensors) -> Tensor:
    """Return mean cross-entropy over each record's own reference tokens, ``[B]``; 0 for a table that fills all the room."""
    ids, mask, labels = batch
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]  # [B, T - 1, V]
    labels = labels[:, 1:]
    each = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")  # [B, T - 1]
    return each.sum(1) / (labels != IGNORED).sum(1).clamp(min=1)


def generate(model: nn.Module, tables: Sequence[str], collate: PairBatches, new_tokens: int = NEW_TOKENS) -> list[str]:
    """Return one text for each table, by beam search with 5 beams and no line breaks."""
    tokenizer, made = collate.tokenizer, []
    end = tokenizer.eos_token_id
    breaks = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("\n", "\n\n")]
    with evaluating(model) as device:
        for start in range(0, len(tables), PROMPTS):
            prompts = [collate.prompt(table) for table in tables[start : start + PROMPTS]]
            longest = max(map(len, prompts))
            # padded on the left, so that every prompt ends where its text begins
            ids = torch.tensor([[end] * (longest - len(p)) + p for p in prompts], device=device)
            mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
            search: Any = model
            out = search.generate(
                input_ids=ids, attention_mask=mask, num_beams=BEAMS, do_sample=False, max_new_tokens=new_tokens,
                bad_words_ids=breaks, pad_token_id=end, eos_token_id=end,
            )  # fmt: skip
            made += [text.strip() for text in tokenizer.batch_decode(out[:, longest:], skip_special_tokens=True)]
    return made


def references(pairs: Pairs) -> dict[str, list[str]]:
    """Return each table once, in the order of first appearance -> all its references."""
    found: dict[str, list[str]] = {}
    for table, text in pairs:
        found.setdefault(table, []).append(text)
    return found


def score(
    model: nn.Module, test: Pairs, collate: PairBatches, metrics: Sequence[str], new_tokens: int = NEW_TOKENS
) -> dict[str, float]:
    """Return the scores by name: one output for each table against all of its references."""
    expected = references(test)
    made = generate(model, list(expected), collate, new_tokens)
    return scores.score(made, list(expected.values()), metrics)
