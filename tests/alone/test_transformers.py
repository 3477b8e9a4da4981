"""Hugging Face models: the loss that they compute is one of each sample, and padding decides neither result nor speed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from apart import attached, by_engine, copied, differing, drawn, single_samples

transformers = pytest.importorskip("transformers")

B, T, V = 4, 6, 30

BERT = {
    "vocab_size": V, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12,
    "max_position_embeddings": 20, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
LLAMA = {
    "vocab_size": V, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 12, "max_position_embeddings": 16, "pad_token_id": 0,
}  # fmt: skip
GPT2 = {
    "vocab_size": V, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16, "attn_pdrop": 0.0, "resid_pdrop": 0.0,
    "embd_pdrop": 0.0, "pad_token_id": 0,
}  # fmt: skip
T5 = {"vocab_size": V, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
DEBERTA = {
    **BERT,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 4,
    "pooler_dropout": 0.0,
}
EXPERTS = {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2}
WAV2VEC = {
    "vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12,
    "conv_dim": (4, 4), "conv_kernel": (4, 3), "conv_stride": (3, 2), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0, "layerdrop": 0.0,
    "hidden_dropout": 0.0, "attention_dropout": 0.0, "feat_proj_dropout": 0.0, "activation_dropout": 0.0,
    "do_stable_layer_norm": True, "final_dropout": 0.0, "feat_extract_norm": "layer",
}  # fmt: skip


def made(name: str, config: str, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, config)(**settings))
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, 0, 0.3)
    return model.double().train()


def tokens(batch: int, seed: int = 0) -> Tensor:
    return torch.randint(1, V, (batch, T), generator=torch.Generator().manual_seed(seed))


def mask(lengths: list[int]) -> Tensor:
    return (torch.arange(T) < torch.tensor(lengths)[:, None]).long()


PADDED, WHOLE = mask([6, 2, 1, 4]), mask([6] * B)


def text(kept: Tensor) -> dict[str, Tensor]:
    return {"input_ids": tokens(len(kept)) * kept, "attention_mask": kept}


def next_tokens(kept: Tensor) -> dict[str, Tensor]:
    """Samples with one label, with many, and with none but padding."""
    labels = tokens(len(kept)).masked_fill(kept == 0, -100)
    labels[0, :4] = -100
    return {**text(kept), "labels": labels}


def classes(kept: Tensor) -> dict[str, Tensor]:
    return {**text(kept), "labels": torch.arange(len(kept)) % 2}


def spans(kept: Tensor) -> dict[str, Tensor]:
    return {**text(kept), "start_positions": torch.tensor([0, 1, 0, 9]), "end_positions": torch.tensor([3, 1, 0, 9])}


def sound(_: Tensor) -> dict[str, Tensor]:
    return {"input_values": drawn(B, 80), "labels": torch.tensor([[1, 2, 3], [1, -100, -100], [2, 2, -100], [3, 1, 2]])}


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[Tensor], dict[str, Tensor]]]] = {
    "BERT": (lambda: made("BertForSequenceClassification", "BertConfig", **BERT), classes),
    "BERT, masked tokens": (lambda: made("BertForMaskedLM", "BertConfig", **BERT), next_tokens),
    "BERT, spans": (lambda: made("BertForQuestionAnswering", "BertConfig", **BERT), spans),
    "RoBERTa": (lambda: made("RobertaForSequenceClassification", "RobertaConfig", **BERT, pad_token_id=0), classes),
    "DeBERTa": (lambda: made("DebertaV2ForSequenceClassification", "DebertaV2Config", **DEBERTA), classes),
    "GPT-2": (lambda: made("GPT2LMHeadModel", "GPT2Config", **GPT2), next_tokens),
    "GPT-2, last token": (lambda: made("GPT2ForSequenceClassification", "GPT2Config", **GPT2), classes),
    "Llama": (lambda: made("LlamaForCausalLM", "LlamaConfig", **LLAMA), next_tokens),
    "T5": (lambda: made("T5ForConditionalGeneration", "T5Config", **T5, decoder_start_token_id=0), next_tokens),
    "Mixtral, one expert after another": (
        lambda: made("MixtralForCausalLM", "MixtralConfig", **EXPERTS, experts_implementation="eager"), next_tokens),
    "Mixtral, batched": (
        lambda: made("MixtralForCausalLM", "MixtralConfig", **EXPERTS, experts_implementation="batched_mm"), next_tokens),
    "wav2vec2": (lambda: made("Wav2Vec2ForCTC", "Wav2Vec2Config", **WAV2VEC), sound),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_that_the_model_computes_is_one_of_each_sample(name: str) -> None:
    make, batch_of = MODELS[name]
    for kept in (PADDED, WHOLE):
        model, batch = make(), batch_of(kept)

        def losses(model: Any, values: tuple[Tensor, ...], keys: tuple[str, ...] = tuple(batch)) -> Tensor:
            return model(**dict(zip(keys, values, strict=True))).loss.reshape(-1)

        right = single_samples(copied(model), tuple(batch.values()), losses)
        engine = attached(model)
        found = by_engine(engine, lambda m=model, b=batch, f=losses: f(m, tuple(b.values())))
        assert {name for name, norms in right.norms.items() if float(norms.nan_to_num().max()) > 0}
        assert differing(found, right) == []


# ------------------------------------------------------------------ padding and speed


class Counted:
    """How often a layer runs."""

    def __init__(self, layer: nn.Module) -> None:
        self.runs = 0
        layer.register_forward_hook(self)

    def __call__(self, *_: Any) -> None:
        self.runs += 1


def half_frozen() -> tuple[nn.Module, Counted]:
    model: Any = made("BertForSequenceClassification", "BertConfig", **BERT)
    model.bert.embeddings.requires_grad_(False)
    model.bert.encoder.layer[0].requires_grad_(False)
    return model, Counted(model.bert.encoder.layer[0])


BATCHES = {
    "padded": PADDED, "whole": WHOLE, "padded alike": mask([4, 4, 4, 4]), "one padded": mask([6, 6, 6, 3]),
    "small, padded": mask([6, 2]), "one sample": mask([3]),
}  # fmt: skip


def runs_of(order: tuple[str, ...]) -> list[int]:
    """How often the first layer runs in a pass over each batch."""
    model, counted = half_frozen()
    engine = attached(model)
    found = []
    for name in order:
        before = counted.runs
        batch = classes(BATCHES[name])
        by_engine(engine, lambda batch=batch: model(**batch).loss)
        found.append(counted.runs - before)
    return found


@pytest.fixture(scope="module")
def settled() -> dict[str, int]:
    """In an engine that has seen it all."""
    names = list(BATCHES)
    return dict(zip(names, runs_of((*names, *names))[len(names) :], strict=True))


@pytest.mark.parametrize("first", list(itertools.permutations(("padded", "whole", "one padded"))), ids=" ".join)
def test_no_batch_makes_a_later_one_slower(first: tuple[str, ...], settled: dict[str, int]) -> None:
    """A batch runs through each layer as often as its samples take different paths, and no more, whatever came before."""
    for others in (("padded alike", "small, padded", "one sample"), ("one sample", "padded alike", "small, padded")):
        order = (*first, *others, *first, *others)
        runs = runs_of(order)
        half = len(order) // 2
        assert dict(zip(order[half:], runs[half:], strict=True)) == settled
    assert settled["whole"] == settled["padded alike"] == settled["one sample"] == 1
    assert max(settled.values()) <= 2
