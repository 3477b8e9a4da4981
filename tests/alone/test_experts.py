"""Mixtures of experts and adaptive softmax: which rows a layer gets depends on the data, and what they give is added in place."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import groupclip as gc

transformers = pytest.importorskip("transformers")

SMALL = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
FAMILIES = {
    "Mixtral": lambda: transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=4)
    ),
    "Qwen3-MoE": lambda: transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(
            **SMALL, num_key_value_heads=2, moe_intermediate_size=12, num_experts=4, num_experts_per_tok=2, head_dim=8
        )
    ),
}


def norms_alone(model: nn.Module, losses, batch: tuple[Tensor, ...]) -> Tensor:
    rows = []
    for i in range(len(batch[0])):
        loss = losses(model, *(t[i : i + 1] for t in batch)).sum()
        grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        rows.append(torch.stack([torch.zeros((), dtype=torch.double) if g is None else g.norm() for g in grads]))
    return torch.stack(rows)


def same(model: nn.Module, losses, *batch: Tensor) -> None:
    want = norms_alone(model, losses, batch)
    engine = gc.attach(model, None, "param-wise", None)
    engine.backward(losses(model, *batch))
    norms = engine.unsafe_norms()
    engine.detach()
    torch.testing.assert_close(
        torch.stack([norms[n] for n, _ in model.named_parameters()], 1), want, rtol=1e-8, atol=1e-11
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("experts", ["eager", "batched_mm"])
@pytest.mark.parametrize("family", FAMILIES)
def test_experts_of_hugging_face(family: str, experts: str, seed: int) -> None:
    torch.manual_seed(seed)
    model = FAMILIES[family]().double().train()
    model.config._experts_implementation = experts
    same(model, lambda m, ids: m(input_ids=ids).logits.square().mean((1, 2)), torch.randint(0, 50, (4, 6)))


class Adaptive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 8), nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10], div_value=2.0)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return -self.head(torch.tanh(self.body(x)), y).output


@pytest.mark.parametrize("labels", [[1, 7, 12, 3, 19, 6], [0, 1, 2, 3, 4, 0], [19, 19, 18, 11, 12, 13]])
def test_adaptive_softmax(labels: list[int]) -> None:
    torch.manual_seed(0)
    same(Adaptive().double(), lambda m, x, y: m(x, y), torch.randn(6, 5).double(), torch.tensor(labels))
