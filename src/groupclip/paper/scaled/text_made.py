"""Made-up phrases and a tiny random BERT: what the smoke test of the SST-2 experiment trains on."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import torch

from .text_data import SST2
from .text_model import Classifier
from .text_public import PUBLIC

WORDS = ("a", "the", "film", "plot", "cast", "story", "with", "and", "of", "scenes")
TELLING = (("dull", "awful", "boring"), ("witty", "lovely", "bright"))  # by label


def write_made(folder: Path, train: int, dev: int) -> None:
    """Phrases whose label one word tells, and public rated texts of the same words."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)

    def phrase(label: int) -> str:
        words = draw.choices(WORDS, k=draw.randint(1, 6))
        return " ".join([*words, draw.choice(TELLING[label])])

    splits = ["train"] * train + ["dev"] * dev
    made = [{"split": s, "label": i % 2, "text": phrase(i % 2)} for i, s in enumerate(splits)]
    with gzip.open(folder / SST2, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in made)
    for name in PUBLIC:
        rated = "".join(f"{i}\t{(-2.0, 2.0)[i % 2]}\t{phrase(i % 2)}\r\n" for i in range(40))
        (folder / name).write_bytes(rated.encode())


def tiny_bert() -> tuple[Classifier, Any]:
    """Return a BERT of 3 blocks, 16 wide, with random weights, and a tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel

    words = ["[PAD]", "[UNK]", *WORDS, *TELLING[0], *TELLING[1]]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    config._attn_implementation = "eager"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Classifier(BertModel(config, add_pooling_layer=False), 16), tokenizer
