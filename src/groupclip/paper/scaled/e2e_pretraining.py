"""Public pretraining of a small GPT-2: write the sentence that a few of its words came from.

GPT-2 was pretrained on eight million web pages; here it is some fifty thousand public sentences. On so few a language model
learns words and little else, but what fine-tuning on E2E needs is to copy from a table. So the task has a table's form: spans
of the sentence, under attributes drawn at random, then the sentence. No text of E2E is used.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .e2e_data import (
    ATTRIBUTES,
    IGNORED,
    PLACEHOLDERS,
    SPECIAL,
    Record,
    Tensors,
    collate,
    encode,
    rows,
    train_tokenizer,
)

PUBLIC = {  # file -> its fields with sentences
    "snli_dev.jsonl.gz": ("premise", "hypothesis"),
    "mnli_dev.jsonl.gz": ("premise", "hypothesis"),
    "qnli_dev.jsonl.gz": ("question", "sentence"),
    "rte.jsonl.gz": ("premise", "hypothesis"),
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A small GPT-2."""

    width: int = 128
    blocks: int = 2
    heads: int = 4
    vocabulary: int = 2048
    positions: int = 128


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Says how the model is pretrained: AdamW, a learning rate that rises in a line for a tenth and falls in a half cosine."""

    steps: int = 1500
    batch_size: int = 64
    lr: float = 3e-3
    weight_decay: float = 0.01
    longest: int = 112
    seed: int = 0


def gpt2(shape: Shape) -> nn.Module:
    """Return a GPT-2 of Hugging Face with random weights, tied embeddings and no dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=shape.vocabulary, n_positions=shape.positions, n_embd=shape.width, n_layer=shape.blocks,
        n_head=shape.heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    config._attn_implementation = "eager"  # torch's fused attention is slow in bfloat16 on a CPU
    return GPT2LMHeadModel(config)


def losses(model: nn.Module, batch: Tensors) -> Tensor:
    """Return mean cross-entropy over each record's own text, ``[B]``, in bfloat16 where torch's autocast allows it.

    A mean over all tokens of a batch would be no loss per sample: its denominator mixes records.
    """
    ids, mask, labels = batch
    with torch.autocast(ids.device.type, torch.bfloat16):
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    wanted = labels[:, 1:]
    each = F.cross_entropy(logits.float().transpose(1, 2), wanted, ignore_index=IGNORED, reduction="none")
    return each.sum(1) / (wanted != IGNORED).sum(1).clamp(min=1)


def public_sentences(folder: Path) -> list[str]:
    """Return sentences of 5 to 32 words of the public files, in lower case, each once, in an order that depends on them alone."""
    found = {
        " ".join(row[field].lower().split())
        for file, fields in PUBLIC.items()
        for row in rows(folder / file)
        for field in fields
    }
    short = [text for text in found if 5 <= len(text.split()) <= 32 and not any(s in text for s in (*SPECIAL, "|"))]
    return sorted(short, key=lambda text: hashlib.sha256(text.encode()).digest())


def keywords(sentence: str, draw: random.Random) -> tuple[str, str]:
    """Return (prompt, text): two to six spans of one to three words under random attributes, and the sentence.

    As in E2E, the first two spans are hidden behind the placeholders of names half of the time, in both.
    """
    words = sentence.split()
    wanted = draw.randint(2, 6)
    places, values = list(range(len(words))), []
    draw.shuffle(places)
    hidden = [p for a, p in PLACEHOLDERS.items() if draw.random() < 0.5]
    taken: set[int] = set()
    attributes = [a for a in ATTRIBUTES.values() if a not in PLACEHOLDERS]
    draw.shuffle(attributes)
    for start in places:
        span = range(start, min(start + draw.randint(1, 3), len(words)))
        if taken & set(span):
            continue
        taken |= set(span)
        if hidden:
            placeholder = hidden.pop()
            attribute = next(a for a, p in PLACEHOLDERS.items() if p == placeholder)
            value = placeholder
            words[span[0]], words[span[-1]] = "", ""
            for place in span:
                words[place] = ""
            words[span[0]] = placeholder
        elif attributes:
            attribute, value = attributes.pop(), " ".join(words[place] for place in span)
        else:
            break
        values.append(f"{attribute} : {value}")
        if len(values) == wanted:
            break
    draw.shuffle(values)
    return " | ".join(values), " ".join(word for word in words if word)


def made_files(made: Path, shape: Shape, recipe: Recipe) -> tuple[Path, Path]:
    """Return where :func:`pretrained` keeps weights and vocabulary; with both, it reads no public file."""
    facts = json.dumps([asdict(shape), asdict(recipe)], sort_keys=True)
    key = hashlib.sha256(facts.encode()).hexdigest()[:8]
    return made / f"gpt2-{shape.width}x{shape.blocks}-{key}.safetensors", made / f"bpe-{shape.vocabulary}.json"


def pretrained(
    folder: Path, made: Path, shape: Shape, recipe: Recipe, tell: Callable[[int, float], None] | None = None
) -> tuple[nn.Module, Any]:
    """Return the model and its tokenizer, from ``made`` if they were made there before with the same shape and recipe."""
    from safetensors.torch import load_model, save_model
    from tokenizers import Tokenizer

    weights, words = made_files(made, shape, recipe)
    torch.manual_seed(recipe.seed)
    model = gpt2(shape)
    if weights.exists() and words.exists():
        load_model(model, str(weights))
        return model, Tokenizer.from_file(str(words))
    made.mkdir(parents=True, exist_ok=True)
    sentences = public_sentences(folder)
    tokenizer = train_tokenizer(sentences, shape.vocabulary)
    tokenizer.save(str(words))
    pretrain(model, tokenizer, sentences, recipe, tell)
    save_model(model, str(weights))
    return model, tokenizer


def pretrain(
    model: nn.Module, tokenizer: Any, sentences: Sequence[str], recipe: Recipe,
    tell: Callable[[int, float], None] | None = None,
) -> None:  # fmt: skip
    """Train in place, without privacy, on public sentences alone."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
    model.train()
    for step, batch in enumerate(_batches(tokenizer, sentences, recipe)):
        done = step / recipe.steps
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr * min(1.0, 10 * done + 0.02) * (1 + math.cos(math.pi * done)) / 2
        loss = losses(model, collate(batch)).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if tell is not None:
            tell(step + 1, float(loss.detach()))
    optimizer.zero_grad()


def _batches(tokenizer: Any, sentences: Sequence[str], recipe: Recipe) -> Any:
    """Yield batches of records of about one length, with other keywords in every pass."""
    draw, taken = random.Random(recipe.seed), 0
    while True:
        records = encode(tokenizer, [keywords(s, draw) for s in sentences], recipe.longest)
        parts: list[list[Record]] = [
            records[first : first + recipe.batch_size] for first in range(0, len(records), recipe.batch_size)
        ]
        draw.shuffle(parts)
        for part in parts:
            if taken == recipe.steps:
                return
            taken += 1
            yield part
