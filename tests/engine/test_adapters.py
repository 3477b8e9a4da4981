"""Adapters of the peft package on a small transformer, as they come: exact, or refused. Needs transformers and peft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
import oracle
from check_attached import plan
from check_engine import Batch, Clipped, between, faults, gradients, members
from groupclip.errors import CoverageError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

VOCABULARY = 23
LORA: dict[str, Any] = {"r": 2, "lora_alpha": 4, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}
CAUSAL: dict[str, Any] = {"task_type": "CAUSAL_LM"}
ADAPTERS: dict[str, Callable[[], Any]] = {
    "lora": lambda: peft.LoraConfig(**LORA, **CAUSAL),
    "lora and biases": lambda: peft.LoraConfig(**LORA, **CAUSAL, bias="all"),
    "lora and a whole layer": lambda: peft.LoraConfig(**LORA, **CAUSAL, modules_to_save=["ln_f"]),
    "lora on embeddings": lambda: peft.LoraConfig(r=2, target_modules=["wte", "c_fc"], fan_in_fan_out=True, **CAUSAL),
    "rank-stabilised lora": lambda: peft.LoraConfig(**LORA, **CAUSAL, use_rslora=True),
    "dora": lambda: peft.LoraConfig(**LORA, **CAUSAL, use_dora=True),
    "adalora": lambda: peft.AdaLoraConfig(
        init_r=3, target_r=2, total_step=10, target_modules=["c_attn"], fan_in_fan_out=True, **CAUSAL
    ),
    "ia3": lambda: peft.IA3Config(
        target_modules=["c_attn", "mlp.c_proj"], feedforward_modules=["mlp.c_proj"], **CAUSAL
    ),
    "prefix tuning": lambda: peft.PrefixTuningConfig(num_virtual_tokens=3, **CAUSAL),
    "prompt tuning": lambda: peft.PromptTuningConfig(num_virtual_tokens=3, **CAUSAL),
    "p-tuning": lambda: peft.PromptEncoderConfig(num_virtual_tokens=3, encoder_hidden_size=8, **CAUSAL),
}


def gpt2(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=8, vocab_size=VOCABULARY, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        attn_implementation="eager", use_cache=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def adapted(name: str) -> Any:
    """In float64, moved away from where adapters start (many have a zero in them)."""
    model = peft.get_peft_model(gpt2(), ADAPTERS[name]()).double()
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(0.1 * torch.randn_like(p))
    return model


def losses(model: nn.Module, batch: Batch) -> Tensor:
    (ids,) = batch
    logits = model(input_ids=ids).logits[:, -ids.shape[1] : -1]
    return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)


def ids(batch: int = 4, seed: int = 3) -> Batch:
    return (torch.randint(VOCABULARY, (batch, 6), generator=torch.Generator().manual_seed(seed)),)


@pytest.mark.parametrize("style", ["all-layer", "layer-wise"])
@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_are_exact(name: str, style: str) -> None:
    model = adapted(name)
    groups = gc.partition(model, style)
    thresholds = between(oracle.clipped_sum(model, losses, ids(), members(groups)).norms)
    want = oracle.clipped_sum(model, losses, ids(), members(groups), "abadi", thresholds)
    assert max(n.max() for n in want.norms.values()) > 0
    engine = gc.attach(model, None, groups, None, clip="abadi", thresholds=thresholds)
    engine.backward(losses(model, ids()))
    assert faults(Clipped(gradients(model), engine.unsafe_norms()), want, groups, thresholds, 1e-10) == []


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_trainable_parameter_of_an_adapter_moves_and_nothing_else(name: str) -> None:
    """Also after the model was moved (here: cast) when it had been attached."""
    model = adapted(name)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    engine = gc.attach(model, optimizer, "layer-wise", plan())
    model.float()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    engine.backward(losses(model, ids()))
    optimizer.step()
    for n, p in model.named_parameters():
        assert torch.equal(p.detach(), before[n]) != p.requires_grad, n


def test_loha_computes_with_a_function_of_its_own_and_is_refused() -> None:
    """peft's Hadamard products are a custom autograd.Function: its gradients aren't those of single samples."""
    model = peft.get_peft_model(gpt2(), peft.LoHaConfig(r=2, target_modules=["lm_head"], **CAUSAL))
    engine = gc.attach(model, None, "layer-wise", None)
    with pytest.raises(CoverageError, match=r"lm_head\.hada_w1_a\.default' that was not clipped"):
        engine.backward(losses(model, ids()))
    assert all(p.grad is None for p in model.parameters())


def test_ranks_of_adalora_are_allotted_by_private_gradients() -> None:
    """After the step p.grad has noise, and that is where its allocator looks."""
    model = adapted("adalora")
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    engine = gc.attach(model, optimizer, "layer-wise", plan())
    for step in range(3):
        engine.backward(losses(model, ids()))
        optimizer.step()
        model.base_model.update_and_allocate(step)
        optimizer.zero_grad()
    assert engine.ledger is not None and engine.ledger.steps == 3


def test_adapters_switched_off_merged_and_added() -> None:
    model = adapted("lora")
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    engine = gc.attach(model, optimizer, "layer-wise", plan())
    engine.backward(losses(model, ids()))
    want = gradients(model)
    engine.discard()
    with model.disable_adapter(), torch.no_grad():
        model(input_ids=ids()[0])
    with torch.no_grad():  # peft computes the merged weight from the adapter's parameters
        model.merge_adapter()
        model(input_ids=ids()[0])
        model.unmerge_adapter()
    engine.backward(losses(model, ids()))
    for n, g in gradients(model).items():
        torch.testing.assert_close(g, want[n], rtol=0, atol=1e-9)
    engine.discard()
    model.add_adapter("second", ADAPTERS["lora"]())
    model.set_adapter("second")
    with pytest.raises(CoverageError, match=r"lora_A\.second\.weight' is trainable but in no group"):
        losses(model, ids())


def test_a_checkpointed_model_of_transformers() -> None:
    """``gradient_checkpointing_enable`` with its own default."""
    results = []
    for checkpoints in (False, True):
        model = adapted("lora")
        model.train()
        if checkpoints:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            model.enable_input_require_grads()
        engine = gc.attach(model, None, "all-layer", None)
        engine.backward(losses(model, ids()))
        results.append(gradients(model))
    for n, g in results[0].items():
        torch.testing.assert_close(results[1][n], g, rtol=0, atol=1e-11)
