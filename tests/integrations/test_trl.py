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
from trainers import plan, work  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of trl's own settings

WORDS = ["<pad>", "<s>", "</s>", *(f"w{n}" for n in range(30))]


def tokenizer() -> Any:
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<s>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", unk_token="<s>", bos_token="<s>", eos_token="</s>"
    )


def sft(folder: Path, **others: Any) -> Any:
    texts = [" ".join(f"w{(n * k) % 30}" for k in range(1, 4 + n % 4)) for n in range(20)]
    args = trl.SFTConfig(
        output_dir=str(folder), max_steps=3, max_grad_norm=0.0, per_device_train_batch_size=5, report_to="none",
        disable_tqdm=True, save_strategy="no", use_cpu=True, logging_steps=1, bf16=False,
        **others,
    )  # fmt: skip
    return trl.SFTTrainer(
        work("causal LM").model,
        args,
        train_dataset=datasets.Dataset.from_dict({"text": texts}),
        processing_class=tokenizer(),
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


def test_packing_is_refused(tmp_path: Path) -> None:
    trainer = sft(tmp_path, packing=True, max_length=16)
    with pytest.raises(gc.PrivacyViolation, match="packing=True puts several records into one row"):
        privatize(trainer, mechanism=plan(20, 8), groups="block-wise")
