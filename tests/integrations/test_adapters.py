"""Adapters of peft through the private Trainer."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

import groupclip as gc  # noqa: E402
from groupclip.integrations.transformers import PrivateTrainer  # noqa: E402
from groupclip.noise import InsecureNoise  # noqa: E402
from trainers import KEY, Work, plan, settings, weights, work  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")

ADAPTERS: dict[str, Any] = {
    "LoRA": lambda: peft.LoraConfig(
        task_type="CAUSAL_LM", r=2, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True
    ),
    "IA3": lambda: peft.IA3Config(
        task_type="CAUSAL_LM", target_modules=["c_attn", "c_proj"], feedforward_modules=["c_proj"], fan_in_fan_out=True
    ),
    "prompt tuning": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
}


def adapted(name: str, number: int = 20) -> Work:
    given = work("causal LM", number=number, ragged=True)
    return Work(peft.get_peft_model(given.model, ADAPTERS[name]()), given.records, given.collate)


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_trains_as_in_the_own_loop(name: str, tmp_path: Path) -> None:
    given, mechanism = adapted(name), plan(20, 8)
    twin = copy.deepcopy(given.model)
    frozen = {
        n: p for n, p in weights(given.model).items() if not dict(given.model.named_parameters())[n].requires_grad
    }
    trains = [p for p in twin.train().parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trains, lr=1e-2, weight_decay=0.0, fused=True)
    engine = gc.attach(twin, optimizer, "layer-wise", mechanism, noise=InsecureNoise(7))
    for batch in gc.logical_batches(given.records, mechanism, microbatch=5, collate=given.collate, key=KEY):
        for part in batch:
            engine.backward(twin(**part).loss)
        optimizer.step()
        optimizer.zero_grad()
    trainer = PrivateTrainer(
        given.model, settings(tmp_path), given.collate, given.records, mechanism=mechanism, groups="layer-wise",
        noise=InsecureNoise(7), sampling_key=KEY,
    )  # fmt: skip
    before = weights(given.model)
    trainer.train()
    found, expected = weights(given.model), weights(twin)
    assert all(torch.equal(found[n], expected[n]) for n in expected)
    assert frozen and all(torch.equal(found[n], frozen[n]) for n in frozen)
    moved = {n for n in found if not torch.equal(found[n], before[n])}
    assert moved == {n for g in trainer.engine.partition.names for n in trainer.engine.partition[g]}


@pytest.mark.parametrize("name", ["LoRA", "IA3"])
def test_a_run_with_an_adapter_goes_on(name: str, tmp_path: Path) -> None:
    args = settings(tmp_path, max_steps=2, save_strategy="steps", save_steps=2)
    first = adapted(name)
    trainer = PrivateTrainer(
        first.model, args, first.collate, first.records, mechanism=plan(20, 8, 4), groups="layer-wise"
    )
    trainer.train()
    assert (tmp_path / "checkpoint-2" / "adapter_model.safetensors").is_file()
    second = adapted(name)
    args = settings(tmp_path, max_steps=4, save_strategy="steps", save_steps=2)
    trainer = PrivateTrainer(
        second.model, args, second.collate, second.records, mechanism=plan(20, 8, 4), groups="layer-wise"
    )
    trainer.train(resume_from_checkpoint=True)
    assert trainer.engine.ledger.steps_by_sampler == {"groupclip": 4, "user": 0}
    folder = trainer.write_release()
    assert (folder / "adapter_model.safetensors").is_file() and not (folder / "model.safetensors").exists()


def test_a_quantised_base_is_let_through(tmp_path: Path) -> None:
    """Frozen integer weights, of which torch makes floating-point ones in the forward pass."""
    given = adapted("LoRA")

    class Quantised(torch.nn.Module):
        def __init__(self, linear: torch.nn.Linear) -> None:
            super().__init__()
            scale = linear.weight.detach().abs().amax() / 127
            self.register_buffer("scale", scale)
            self.weight = torch.nn.Parameter(
                (linear.weight.detach() / scale).round().to(torch.int8), requires_grad=False
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(x, self.weight.to(x.dtype) * self.scale)

    given.model.base_model.model.lm_head = Quantised(given.model.base_model.model.lm_head)
    trainer = PrivateTrainer(
        given.model, settings(tmp_path), given.collate, given.records, mechanism=plan(20, 8), groups="layer-wise"
    )
    trainer.train()
    assert trainer.engine.ledger.steps_by_sampler == {"groupclip": 3, "user": 0}
