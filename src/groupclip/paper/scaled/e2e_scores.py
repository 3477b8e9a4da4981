"""Perplexity on held-out pairs, and BLEU and ROUGE-L of texts that a model writes for held-out tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .. import scores as metrics
from .e2e_data import END, IGNORED, LONGEST, Record, Table, collate

WRITTEN = 48  # tokens at most


@dataclass(frozen=True)
class Asked:
    """A held-out table, and what people wrote for it, names and capitals as they were."""

    table: Table
    references: tuple[str, ...]


def scores(model: nn.Module, *, tokenizer: Any, records: Sequence[Record], asked: Sequence[Asked]) -> dict[str, float]:
    """Return ``loss`` (nats) and ``perplexity`` of a token of the texts, END included; BLEU and ROUGE-L in percent."""
    model.eval()
    loss = token_loss(model, records)
    made = write(model, tokenizer, [one.table for one in asked])
    told = metrics.score(made, [one.references for one in asked], ("bleu", "rouge_l"))
    return {"loss": loss, "perplexity": math.exp(loss), **told}


def token_loss(model: nn.Module, records: Sequence[Record]) -> float:
    """Return mean cross-entropy over all tokens of all texts."""
    device = next(model.parameters()).device
    total, count = 0.0, 0
    with torch.no_grad():
        for first in range(0, len(records), 64):
            ids, mask, labels = (t.to(device) for t in collate(records[first : first + 64]))
            with torch.autocast(device.type, torch.bfloat16):
                logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
            wanted = labels[:, 1:]
            total += float(
                F.cross_entropy(logits.float().transpose(1, 2), wanted, ignore_index=IGNORED, reduction="sum")
            )
            count += int((wanted != IGNORED).sum())
    return total / count


def write(model: nn.Module, tokenizer: Any, tables: Sequence[Table]) -> list[str]:
    """Return a text for each table: the likeliest token each time, until END or ``WRITTEN`` tokens; names put back.

    Tables of one length are written for together, so that no prompt needs padding.
    """
    end = tokenizer.token_to_id(END)
    device = next(model.parameters()).device
    prompts = [[*tokenizer.encode(table.prompt).ids, end][: LONGEST - 1] for table in tables]
    made = [""] * len(tables)
    for length in sorted(set(map(len, prompts))):
        places = [place for place, prompt in enumerate(prompts) if len(prompt) == length]
        ids = torch.tensor([prompts[place] for place in places], device=device)
        for place, written in zip(places, _continue(model, ids, end), strict=True):
            kept = written[: written.index(end)] if end in written else written
            text = tokenizer.decode(kept, skip_special_tokens=False).strip()
            made[place] = tables[place].show(text)
    return made


def _continue(model: nn.Module, ids: torch.Tensor, end: int) -> list[list[int]]:
    search: Any = model
    out = search.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=WRITTEN,
        pad_token_id=end, eos_token_id=end,
    )  # fmt: skip
    return out[:, ids.shape[1] :].tolist()
