"""Small made models and records for transformers' Trainer: five kinds of task, all texts of one length where it is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import groupclip as gc

KEY = bytes(range(32))
VOCABULARY, LENGTH = 40, 7
KINDS = ("sequence classification", "token classification", "causal LM", "masked LM", "seq2seq LM")


@dataclass(frozen=True)
class Work:
    model: nn.Module
    records: list[dict[str, Tensor]]
    collate: Any


def model_of(kind: str) -> nn.Module:
    small = dict(
        vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, num_labels=3,
        max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    match kind:
        case "sequence classification":
            return transformers.BertForSequenceClassification(transformers.BertConfig(**small))
        case "token classification":
            return transformers.BertForTokenClassification(transformers.BertConfig(**small))
        case "masked LM":
            return transformers.BertForMaskedLM(transformers.BertConfig(**small))
        case "causal LM":
            config = transformers.GPT2Config(
                vocab_size=VOCABULARY, n_embd=8, n_layer=2, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=1,
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            )  # fmt: skip
            return transformers.GPT2LMHeadModel(config)
        case _:
            config = transformers.T5Config(
                vocab_size=VOCABULARY, d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2, dropout_rate=0.0,
                decoder_start_token_id=0, pad_token_id=0,
            )  # fmt: skip
            return transformers.T5ForConditionalGeneration(config)


def records_of(kind: str, number: int, ragged: bool, seed: int) -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    found = []
    for n in range(number):
        length = LENGTH - n % 4 if ragged else LENGTH
        ids = torch.randint(2, VOCABULARY, (length,), generator=draw)
        record = {"input_ids": ids, "attention_mask": torch.ones(length, dtype=torch.long)}
        match kind:
            case "sequence classification":
                record["labels"] = torch.tensor(n % 3)
            case "token classification":
                record["labels"] = ids % 3
            case "masked LM":
                record["labels"] = torch.where(torch.arange(length) % 3 == 1, ids, -100)
                record["input_ids"] = torch.where(torch.arange(length) % 3 == 1, 1, ids)
            case "causal LM":
                # nothing predicts the first token; transformers counts it for GPT-2 all the same, unless it is left out here
                record["labels"] = torch.where(torch.arange(length) == 0, -100, ids)
            case _:
                record["labels"] = torch.randint(2, VOCABULARY, (length,), generator=draw)
        found.append(record)
    return found


def collate(records: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    def padded(name: str) -> Tensor:
        rows = [r[name] for r in records]
        if rows[0].dim() == 0:
            return torch.stack(rows)
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100 if name == "labels" else 0)

    return {name: padded(name) for name in records[0]}


def work(kind: str, number: int = 12, ragged: bool = False, seed: int = 0) -> Work:
    torch.manual_seed(seed)
    return Work(model_of(kind), records_of(kind, number, ragged, seed), collate)


def settings(folder: Path, **others: Any) -> transformers.TrainingArguments:
    """Quiet ones that a private Trainer takes."""
    given = dict(
        output_dir=str(folder), max_steps=3, max_grad_norm=0.0, per_device_train_batch_size=5, report_to="none",
        disable_tqdm=True, save_strategy="no", lr_scheduler_type="constant", learning_rate=1e-2, use_cpu=True,
    )  # fmt: skip
    with quiet():
        return transformers.TrainingArguments(**(given | others))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


def plan(number: int = 12, batch: float = 4, steps: int = 3, **others: Any) -> gc.Mechanism:
    facts: dict[str, Any] = {"noise_multiplier": 1.0} | others
    return gc.Mechanism(dataset_size=number, expected_batch_size=batch, steps=steps, **facts)


def weights(model: nn.Module) -> dict[str, Tensor]:
    with torch._C.DisableTorchFunctionSubclass():
        return {name: p.detach().clone().as_subclass(Tensor) for name, p in model.named_parameters()}
