"""Batches of all sorts, one after another: padded otherwise, not at all, of other sizes. What a lesson taught goes on to hold."""

from __future__ import annotations

import pytest
import torch
from families import ENTRIES
from heads import LENGTH, PADDING

import groupclip as gc
from check_rules import Uses
from groupclip.autograd.operation import SLOW
from models import Batch, Entry

#: (samples, how many tokens each has)
BATCHES = [
    (4, "other"),
    (6, "other"),
    (3, "full"),
    (5, "other"),
    (4, "full"),
    (1, "other"),
    (8, "short"),
    (7, "other"),
    (2, "full"),
]


def padded(entry: Entry, size: int, lengths: str, seed: int) -> Batch:
    ids, mask, *rest = entry.batch(size, seed=seed)
    drawn = torch.randint(2, LENGTH + 1, (size,), generator=torch.Generator().manual_seed(seed))
    kept = {"other": drawn, "full": torch.full((size,), LENGTH), "short": torch.full((size,), LENGTH - 2)}[lengths]
    mask = (torch.arange(LENGTH) < kept[:, None]).long()
    return torch.where(mask.bool(), ids.clamp(min=3), PADDING), mask, *rest


def slow_passes(name: str) -> list[int]:
    entry = ENTRIES[name]
    model = entry.model()
    engine = gc.attach(model, None, "layer-wise", None)
    slow = []
    for n, (size, lengths) in enumerate(BATCHES):
        engine._tape.observer = uses = Uses()
        engine.backward(entry.losses(model, padded(entry, size, lengths, n)))
        engine.discard()
        if any(SLOW in ways for ways in uses.ways.values()):
            slow.append(n)
    engine.detach()
    return slow


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "name", ["BERT (sdpa)", "DeBERTa-v2", "GPT-2", "T5 (sdpa)", "BART (sdpa)", "Llama (eager)"]
)
def test_no_batch_is_slow(name: str) -> None:
    assert slow_passes(next(n for n in ENTRIES if n.startswith(name))) == []


def test_attention_without_a_mask_is_another_course_and_slow_once() -> None:
    """Llama repeats keys and values where there is a mask, and not where nothing is padded: the first such batch is news."""
    assert slow_passes("Llama (sdpa)") in ([], [2])
