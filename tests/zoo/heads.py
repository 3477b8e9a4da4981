"""Batches for the model families, and the loss of each sample in the usual tasks.

Text is padded on the right and masked; lengths differ within a batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import Batch, labelled

VOCABULARY, LENGTH, CLASSES, PADDING = 19, 6, 3, 0


# ---------------------------------------------------------------- batches: tuples of tensors, samples first


def text(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(ids, mask), both [B, LENGTH]: sample i has LENGTH - (i mod 3) tokens, none of them a special one."""
    ids = torch.randint(3, VOCABULARY, (size, LENGTH), generator=generator)
    lengths = LENGTH - torch.arange(size) % 3
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    return torch.where(mask.bool(), ids, PADDING), mask


def labelled_text(size: int, generator: torch.Generator) -> Batch:
    return *text(size, generator), torch.randint(CLASSES, (size,), generator=generator)


def text_pair(size: int, generator: torch.Generator) -> Batch:
    """(ids, mask) of the source, labels [B, LENGTH] of the target with -100 where it is padded."""
    source, target = text(size, generator), text(size, generator)
    return *source, torch.where(target[1].bool(), target[0], -100)


def images(size: int, generator: torch.Generator) -> Batch:
    return labelled(3, 16, 16, classes=CLASSES)(size, generator)


def spectra(size: int, generator: torch.Generator) -> Batch:
    """(log-mel spectra [B, 6, 16], labels): two frames for each of the encoder's 8 positions."""
    return labelled(6, 16, classes=CLASSES)(size, generator)


# ---------------------------------------------------------------- losses: [B], one a sample


def over_tokens(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy over the sample's own tokens (label -100: none): no other sample's length enters."""
    each = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    return each.sum(1) / (labels != -100).sum(1)


def classify_text(model: nn.Module, batch: Batch) -> Tensor:
    ids, mask, labels = batch
    return F.cross_entropy(model(input_ids=ids, attention_mask=mask).logits, labels, reduction="none")


def next_token(model: nn.Module, batch: Batch) -> Tensor:
    ids, mask = batch
    logits = model(input_ids=ids, attention_mask=mask).logits
    return over_tokens(logits[:, :-1], torch.where(mask.bool(), ids, -100)[:, 1:])


def masked_tokens(model: nn.Module, batch: Batch) -> Tensor:
    """Every third token is hidden (id 1) and asked for."""
    ids, mask = batch
    hidden = (torch.arange(LENGTH) % 3 == 1) & mask.bool()
    logits = model(input_ids=torch.where(hidden, 1, ids), attention_mask=mask).logits
    return over_tokens(logits, torch.where(hidden, ids, -100))


def translate(model: nn.Module, batch: Batch) -> Tensor:
    ids, mask, labels = batch
    return over_tokens(model(input_ids=ids, attention_mask=mask, labels=labels).logits, labels)


def classify(model: nn.Module, batch: Batch) -> Tensor:
    inputs, labels = batch
    return F.cross_entropy(model(inputs).logits, labels, reduction="none")
