"""Models and batches of the benchmarks, with random weights or, on the meta device, none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from groupclip.models import build_model

Made = tuple[nn.Module, Any]


def vit(name: str, size: int, samples: int, meta: bool = False) -> Made:
    with torch.device("meta" if meta else "cpu"):
        model = build_model(name, input_shape=(3, size, size), num_classes=10, seed=None if meta else 0)
        if not meta:  # equal patches, or no gradient below the head, would not be what training sees
            torch.nn.init.normal_(model.get_parameter("head.weight"), std=0.1)
        return model, (torch.randn(samples, 3, size, size), torch.zeros(samples, dtype=torch.int64))


def text(samples: int) -> Made:
    model = build_model("text-small", input_shape=(64,), num_classes=2, vocabulary=2000, seed=0)
    torch.nn.init.normal_(model.get_parameter("head.weight"), std=0.1)
    return model, (ids(samples, 64, 2000), torch.zeros(samples, dtype=torch.int64))


def ids(samples: int, length: int, vocabulary: int) -> Tensor:
    """Ids that differ within a sample."""
    return torch.stack([torch.randperm(vocabulary - 1)[:length] + 1 for _ in range(samples)])


def hf(config: Any, length: int, samples: int, meta: bool = False) -> Made:
    """A language model or, for RoBERTa, a classifier, with random weights."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    kind = AutoModelForSequenceClassification if config.model_type == "roberta" else AutoModelForCausalLM
    with torch.device("meta" if meta else "cpu"):
        model = kind.from_config(config).train()
        words = torch.empty(samples, length, dtype=torch.int64) if meta else ids(samples, length, config.vocab_size)
        labels = torch.zeros((samples,) if config.model_type == "roberta" else (samples, length), dtype=torch.int64)
    return model, ({"input_ids": words}, labels)


def roberta(**changes: Any) -> Any:
    from transformers import RobertaConfig

    return RobertaConfig(**{"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, **changes})


def gpt2(**changes: Any) -> Any:
    from transformers import GPT2Config

    return GPT2Config(use_cache=False, **changes)


def llama(**changes: Any) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(use_cache=False, **changes)




def hf_vit(samples: int) -> Made:
    """ViT-L as of the paper's time: attention in single operations, whose matrix of weights is saved."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, num_labels=100,
                       attn_implementation="eager")  # fmt: skip
    with torch.device("meta"):
        model = ViTForImageClassification(config).train()
        return model, ({"pixel_values": torch.empty(samples, 3, 224, 224)}, torch.zeros(samples, dtype=torch.int64))
