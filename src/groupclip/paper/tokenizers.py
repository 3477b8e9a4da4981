"""Small byte-level BPE tokenizers made from made text: RoBERTa's and GPT-2's kind, without a download."""

from __future__ import annotations

import functools
from typing import Any

from .data.glue import TEMPLATES
from .data.made import corpus
from .source import needed

VOCABULARY = 1000


def made_tokenizer(family: str) -> Any:
    """Return a transformers tokenizer with the special tokens of ``roberta`` or ``gpt2``."""
    transformers = needed("transformers", "a text model")
    special = {
        "roberta": {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"},
        "gpt2": {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"},
    }[family]  # fmt: skip
    order = tuple(dict.fromkeys(special.values()))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=_train(order, family == "roberta"), **special)


@functools.lru_cache(maxsize=2)
def _train(special: tuple[str, ...], framed: bool) -> Any:
    library = needed("tokenizers", "a text model")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=list(special), show_progress=False,
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    # label words often enough to become tokens of their own, as they are in RoBERTa's vocabulary
    words = [f"It was{word}" for template in TEMPLATES.values() for word in template.words] * 20
    tokenizer.train_from_iterator([*corpus(), *words], trainer=trainer)
    if framed:
        start, _, end = special[:3]
        tokenizer.post_processor = library.processors.RobertaProcessing(
            (end, tokenizer.token_to_id(end)), (start, tokenizer.token_to_id(start)), add_prefix_space=False
        )
    return tokenizer
