"""trl's SFTTrainer, made private."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")
tokenizers = pytest.importorskip("tokenizers")

import groupclip as gc  # noqa: E402
from groupclip.integrations.transformers import privatize  # noqa: E402
from groupclip.noise import InsecureNoise  # noqa: E402
from trainers import KEY, plan, weights, work  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of trl's own settings

WORDS = ["<pad>", "<s>", "</s>", *(f"w{n}" for n in range(30))]


def tokenizer() -> Any:
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<s>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", unk_token="<s>", bos_token="<s>", eos_token="</s>"
    )


def sft(folder: Path, dataset: Any = None, adapter: Any = None, **others: Any) -> Any:
    texts = [" ".join(f"w{(n * k) % 30}" for k in range(1, 4 + n % 4)) for n in range(20)]
    args = trl.SFTConfig(
        output_dir=str(folder), max_steps=3, max_grad_norm=0.0, per_device_train_batch_size=5, report_to="none",
        disable_tqdm=True, save_strategy="no", use_cpu=True, logging_steps=1, bf16=False,
        **others,
    )  # fmt: skip
    return trl.SFTTrainer(
        work("causal LM").model,
        args,
        train_dataset=datasets.Dataset.from_dict({"text": texts}) if dataset is None else dataset,
        processing_class=tokenizer(),
        peft_config=adapter,
    )


def test_it_trains_privately_and_logs_nothing_of_the_texts(tmp_path: Path) -> None:
    trainer = sft(tmp_path)
    before = [p.detach().clone() for p in trainer.model.parameters()]
    private = privatize(trainer, mechanism=plan(20, 8), groups="block-wise")
    private.train()
    assert private.engine.ledger.steps_by_sampler == {"groupclip": 3, "user": 0}
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    told = {name for row in trainer.state.log_history for name in row}
    assert not {name for name in told if "loss" in name or "accuracy" in name or "entropy" in name or "tokens" in name}
    assert "epsilon" in told


def test_lora_on_prompts_and_completions_is_the_own_loop_bit_for_bit(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    pairs = [{"prompt": f"w{n} w{n + 1}", "completion": " ".join(f"w{k}" for k in range(n % 4 + 1))} for n in range(20)]

    def made() -> Any:
        adapter = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
        return sft(tmp_path, datasets.Dataset.from_list(pairs), adapter, lr_scheduler_type="constant", learning_rate=1e-2)

    trainer, twin, mechanism = made(), made().model, plan(20, 8)
    twin.load_state_dict(trainer.model.state_dict())
    expected = own_loop(twin, trainer.train_dataset, trainer.data_collator, mechanism)
    before = trained(trainer.model)
    private = privatize(trainer, mechanism=mechanism, groups="layer-wise", sampling_key=KEY, noise=InsecureNoise(7))
    private.train()
    found = trained(trainer.model)
    assert found and all("lora" in name for name in found)
    assert all(torch.equal(found[name], expected[name]) and not torch.equal(found[name], before[name]) for name in found)


def trained(model: Any) -> dict[str, torch.Tensor]:
    return {name: value for name, value in weights(model).items() if model.get_parameter(name).requires_grad}


def own_loop(model: Any, records: Any, collate: Any, mechanism: gc.Mechanism) -> dict[str, torch.Tensor]:
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.0, fused=True)
    engine = gc.attach(model, optimizer, "layer-wise", mechanism, noise=InsecureNoise(7))
    for batch in gc.logical_batches(records, mechanism, microbatch=5, collate=collate, key=KEY):
        for part in batch:
            engine.backward(model(**part).loss)
        optimizer.step()
        optimizer.zero_grad()
    return trained(model)


def test_packing_is_refused(tmp_path: Path) -> None:
    trainer = sft(tmp_path, packing=True, max_length=16)
    with pytest.raises(gc.PrivacyViolation, match="packing=True puts several records into one row"):
        privatize(trainer, mechanism=plan(20, 8), groups="block-wise")
