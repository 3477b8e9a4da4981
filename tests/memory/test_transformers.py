"""Plans of Hugging Face models, also where the batch is as long as the text: what the rules ask of numbers isn't the model's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import groupclip as gc
from groupclip.memory import Planner, measure
from groupclip.memory.passes import optimizer_bytes

transformers = pytest.importorskip("transformers")
SMALL = {"vocab_size": 100}


def bert() -> nn.Module:
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, max_position_embeddings=64,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **SMALL,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        pad_token_id=0,
        **SMALL,
    )
    return transformers.T5ForConditionalGeneration(config)


def batch(samples: int, length: int, **more: Any) -> dict[str, Any]:
    ids = torch.randint(2, 100, (samples, length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **more}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("make", "example"),
    [
        pytest.param(bert, batch(8, 8), id="bert, as many samples as tokens"),
        pytest.param(bert, batch(6, 8), id="bert"),
        pytest.param(t5, batch(8, 8, labels=torch.randint(2, 100, (8, 8))), id="t5, as many samples as tokens"),
        pytest.param(t5, batch(6, 8, labels=torch.randint(2, 100, (6, 5))), id="t5"),
    ],
)
def test_a_plan_is_near_what_a_step_takes(make: Any, example: Any) -> None:
    model = make().train()
    plan = gc.plan(model, example, groups=2)
    assert plan.curve.peak == pytest.approx(measure(model, example, plan.partition).peak, rel=0.05)
    # On models as small as these the noise takes more than the pass.
    assert plan.predicted_peak == plan.static + max(plan.curve.peak, optimizer_bytes(model, None)[1])


def test_one_sample_is_planned_as_the_engine_clips_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A position table of one row is no sample, though the batch has one row too: nothing is computed one by one."""
    monkeypatch.setattr("groupclip.alone.run._said", set())  # it is said once in a process
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 1, **SMALL}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False, **sizes))
    ids = torch.randint(5, 50, (1, 16))
    gc.plan(model, ({"input_ids": ids}, ids), groups=2)
    assert "one at a time" not in caplog.text


def test_a_tiny_bert_keeps_what_planned_groups_promise() -> None:
    """Tiny layers and many of them: nine planned groups once needed more than one did, and than a group for each layer."""
    model = bert().train()
    planner = Planner(model, (batch(16, 8), torch.randint(2, (16,))))
    peaks = [planner.least(groups).predicted_peak for groups in range(1, 23)]
    assert peaks == sorted(peaks, reverse=True)
    for style in ("all-layer", "uniform:2", "layer-wise"):
        groups = gc.partition(model, style)
        assert peaks[min(22, len(groups)) - 1] <= planner.static + planner.sketched.private(groups).peak
    for groups in (1, 2, 9):
        assert len(planner.within(peaks[groups - 1]).partition) <= groups
