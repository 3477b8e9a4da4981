"""The model families of Hugging Face that people fine-tune: tiny, with random weights, built without a network.

Each has the head of a usual task and that task's loss of each sample: its own class, or the mean over its own tokens.
Dropout and stochastic depth are zero (the oracle
draws other numbers), the models are in training mode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers as hf
from heads import (
    CLASSES,
    PADDING,
    VOCABULARY,
    classify,
    classify_text,
    images,
    labelled_text,
    masked_tokens,
    next_token,
    spectra,
    text,
    text_pair,
    translate,
)
from torch import Tensor, nn

from models import Batch, Entry

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
TEXT = {"vocab_size": VOCABULARY, "pad_token_id": PADDING, "max_position_embeddings": 12}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LABELS = {"num_labels": CLASSES}
ENCODER = SIZES | TEXT | NO_DROPOUT | LABELS
DECODER = SIZES | TEXT | TOKENS | {"attention_dropout": 0.0}
IMAGE = SIZES | NO_DROPOUT | LABELS | {"image_size": 16, "patch_size": 8}
BOTH = ("eager", "sdpa")


# ---------------------------------------------------------------- models

Build = Callable[[str], nn.Module]


def pretrained(config: Callable[..., Any], model: Callable[..., nn.Module], **sizes: Any) -> Build:
    """Builds a family with the attention of that name, randomly initialised."""
    return lambda attention: model(config(**sizes, attn_implementation=attention)).train()


def with_group_norms(build: Build, attention: str) -> nn.Module:
    """BatchNorm mixes samples and is refused; two channels a group in its stead."""
    model = build(attention)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                module.register_module(name, nn.GroupNorm(child.num_features // 2, child.num_features))
    return model


def with_lora(build: Build, targets: list[str], task: str, attention: str) -> nn.Module:
    """Adapters of rank 2 on ``targets``; the rest is frozen but the head, if the task has one."""
    import peft

    settings = peft.LoraConfig(task_type=task, r=2, lora_alpha=4, lora_dropout=0.0, target_modules=targets)
    return peft.get_peft_model(build(attention), settings).train()


@dataclass(frozen=True)
class Family:
    """One family with one head: ``build(attention)``; ``draw`` and ``losses`` as in ``models.Entry``."""

    name: str
    build: Build
    draw: Callable[[int, torch.Generator], Batch]
    losses: Callable[[nn.Module, Batch], Tensor]
    attentions: tuple[str, ...] = BOTH

    def entry(self, attention: str) -> Entry:
        return Entry(f"{self.name} ({attention})", partial(self.build, attention), self.draw, self.losses)


bert = partial(pretrained, hf.BertConfig)
gpt2 = partial(
    pretrained, hf.GPT2Config, vocab_size=VOCABULARY, n_positions=12, n_embd=16, n_layer=2, n_head=2, n_inner=24, **TOKENS,
    pad_token_id=PADDING, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **LABELS,
)  # fmt: skip
llama = partial(pretrained, hf.LlamaConfig, **DECODER, num_key_value_heads=1)
t5 = partial(
    pretrained, hf.T5Config, hf.T5ForConditionalGeneration, vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=24, num_layers=2,
    num_heads=2, relative_attention_num_buckets=8, relative_attention_max_distance=6, dropout_rate=0.0, pad_token_id=PADDING,
    eos_token_id=2, decoder_start_token_id=PADDING,
)  # fmt: skip

TEXT_FAMILIES = (
    Family("BERT", bert(hf.BertForSequenceClassification, **ENCODER), labelled_text, classify_text),
    Family("BERT, masked tokens", bert(hf.BertForMaskedLM, **ENCODER), text, masked_tokens),
    Family(
        "RoBERTa",
        pretrained(hf.RobertaConfig, hf.RobertaForSequenceClassification, **ENCODER),
        labelled_text,
        classify_text,
    ),
    Family(
        "DeBERTa-v2",
        pretrained(
            hf.DebertaV2Config, hf.DebertaV2ForSequenceClassification, **ENCODER, relative_attention=True, position_buckets=4,
            pos_att_type=["p2c", "c2p"], norm_rel_ebd="layer_norm", share_att_key=True, position_biased_input=False,
            conv_kernel_size=3, pooler_hidden_size=16, type_vocab_size=0,
        ),
        labelled_text,
        classify_text,
        ("eager",),
    ),
    Family(
        "ALBERT",
        pretrained(
            hf.AlbertConfig, hf.AlbertForSequenceClassification, **ENCODER, embedding_size=8, classifier_dropout_prob=0.0
        ),
        labelled_text,
        classify_text,
    ),
    Family(
        "DistilBERT",
        pretrained(
            hf.DistilBertConfig, hf.DistilBertForSequenceClassification, **TEXT, **LABELS, dim=16, hidden_dim=24, n_layers=2,
            n_heads=2, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
        ),
        labelled_text,
        classify_text,
    ),
    Family(
        "ELECTRA",
        pretrained(hf.ElectraConfig, hf.ElectraForSequenceClassification, **ENCODER, embedding_size=8),
        labelled_text,
        classify_text,
    ),
    Family("GPT-2, tied", gpt2(hf.GPT2LMHeadModel), text, next_token),
    Family("GPT-2, untied", gpt2(hf.GPT2LMHeadModel, tie_word_embeddings=False), text, next_token),
    Family("GPT-2, classification", gpt2(hf.GPT2ForSequenceClassification), labelled_text, classify_text),
    Family(
        "GPT-NeoX",
        pretrained(hf.GPTNeoXConfig, hf.GPTNeoXForCausalLM, **DECODER, hidden_dropout=0.0),
        text,
        next_token,
    ),
    Family(
        "OPT",
        pretrained(
            hf.OPTConfig, hf.OPTForCausalLM, **TEXT, **TOKENS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            ffn_dim=24, word_embed_proj_dim=8, dropout=0.0,
        ),
        text,
        next_token,
    ),
    Family("Llama", llama(hf.LlamaForCausalLM), text, next_token),
    Family("Llama, classification", llama(hf.LlamaForSequenceClassification, **LABELS), labelled_text, classify_text),
    Family(
        "Llama, LoRA",
        partial(with_lora, llama(hf.LlamaForCausalLM), ["q_proj", "v_proj"], "CAUSAL_LM"),
        text,
        next_token,
    ),
    Family(
        "Mistral",
        pretrained(hf.MistralConfig, hf.MistralForCausalLM, **DECODER, num_key_value_heads=1, sliding_window=3),
        text,
        next_token,
    ),
    Family(
        "Qwen2",
        pretrained(hf.Qwen2Config, hf.Qwen2ForCausalLM, **DECODER, num_key_value_heads=1, tie_word_embeddings=True),
        text,
        next_token,
    ),
    Family(
        "Gemma",
        pretrained(hf.GemmaConfig, hf.GemmaForCausalLM, **DECODER, num_key_value_heads=1, head_dim=8),
        text,
        next_token,
    ),
    Family(
        "Phi",
        pretrained(hf.PhiConfig, hf.PhiForCausalLM, **DECODER, embd_pdrop=0.0, resid_pdrop=0.0, qk_layernorm=True),
        text,
        next_token,
    ),
    Family("T5", t5(), text_pair, translate),
    Family("T5 v1.1", t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False), text_pair, translate),
    Family(
        "BART",
        pretrained(
            hf.BartConfig, hf.BartForConditionalGeneration, **TEXT, **TOKENS, d_model=16, encoder_layers=2, decoder_layers=2,
            encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, dropout=0.0,
            decoder_start_token_id=2, forced_eos_token_id=None,
        ),
        text_pair,
        translate,
    ),
    Family(
        "Mamba",
        pretrained(
            hf.MambaConfig, hf.MambaForCausalLM, **TOKENS, vocab_size=VOCABULARY, pad_token_id=PADDING, hidden_size=8,
            state_size=4, num_hidden_layers=2,
        ),
        text,
        next_token,
        ("eager",),
    ),
)  # fmt: skip

OTHER_FAMILIES = (
    Family("ViT", pretrained(hf.ViTConfig, hf.ViTForImageClassification, **IMAGE), images, classify),
    Family("DeiT", pretrained(hf.DeiTConfig, hf.DeiTForImageClassification, **IMAGE), images, classify),
    Family(
        "BEiT",
        pretrained(
            hf.BeitConfig, hf.BeitForImageClassification, **IMAGE, drop_path_rate=0.0, use_relative_position_bias=True
        ),
        images,
        classify,
    ),
    Family(
        "Swin",
        pretrained(
            hf.SwinConfig, hf.SwinForImageClassification, **NO_DROPOUT, **LABELS, image_size=16, patch_size=2, embed_dim=8,
            depths=[2, 1], num_heads=[2, 2], window_size=4, mlp_ratio=1.5, drop_path_rate=0.0,
        ),
        images,
        classify,
    ),
    Family(
        "ConvNeXt",
        pretrained(
            hf.ConvNextConfig, hf.ConvNextForImageClassification, **LABELS, hidden_sizes=[8, 16], depths=[2, 1], num_stages=2,
            drop_path_rate=0.0,
        ),
        images,
        classify,
        ("eager",),
    ),
    Family(
        "ResNet, GroupNorm",
        partial(
            with_group_norms,
            pretrained(
                hf.ResNetConfig, hf.ResNetForImageClassification, **LABELS, embedding_size=4, hidden_sizes=[8, 16],
                depths=[2, 1], layer_type="basic",
            ),
        ),
        images,
        classify,
        ("eager",),
    ),
    Family(
        "CLIP vision",
        pretrained(
            hf.CLIPConfig, hf.CLIPForImageClassification, **LABELS,
            vision_config=SIZES | {"image_size": 16, "patch_size": 8}, text_config=SIZES,
        ),
        images,
        classify,
    ),
    Family(
        "Whisper encoder",
        pretrained(
            hf.WhisperConfig, hf.WhisperForAudioClassification, **TOKENS, **LABELS, vocab_size=VOCABULARY,
            pad_token_id=PADDING, decoder_start_token_id=1, d_model=16, encoder_layers=2, encoder_attention_heads=2,
            encoder_ffn_dim=24, num_mel_bins=6, max_source_positions=8, dropout=0.0, classifier_proj_size=8,
            use_weighted_layer_sum=True, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=24,
        ),
        spectra,
        classify,
    ),
)  # fmt: skip

FAMILIES = TEXT_FAMILIES + OTHER_FAMILIES
ENTRIES = {entry.name: entry for family in FAMILIES for entry in map(family.entry, family.attentions)}
