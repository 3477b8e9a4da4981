"""The law of the batches that a Trainer really trains on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

import groupclip as gc  # noqa: E402
from groupclip.integrations.transformers import PrivateTrainer  # noqa: E402
from law import ALPHA, p_values  # noqa: E402
from trainers import plan, settings, work  # noqa: E402

NUMBER, BATCH, STEPS = 24, 6, 240


class Rows(nn.Module):
    """Notes which rows it is trained on, one call of the loss a sample or a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Linear(1, 1)

    def forward(self, row: Tensor, labels: Tensor) -> dict[str, Tensor]:
        out = self.table(row.float().unsqueeze(1)).squeeze(1)
        return {"loss": (out - labels).square().mean(), "logits": out}


RECORDS = [{"row": n, "labels": 0.0} for n in range(NUMBER)]


class Noted:
    """A collator that notes the rows it is given, with the step that the trainer is in."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.seen = np.zeros((STEPS, NUMBER), dtype=int)

    def __call__(self, records: list[dict[str, float]]) -> dict[str, Tensor]:
        for record in records:
            self.seen[self.trainer.state.global_step, int(record["row"])] += 1
        return {name: torch.tensor([r[name] for r in records]) for name in records[0]}


def test_batches_are_poisson_samples(tmp_path: Path) -> None:
    noted = Noted()
    args = settings(tmp_path, max_steps=STEPS, per_device_train_batch_size=5, remove_unused_columns=False)
    trainer = PrivateTrainer(Rows(), args, noted, RECORDS, mechanism=plan(NUMBER, BATCH, STEPS), groups="all-layer")
    noted.trainer = trainer
    trainer.train()
    assert noted.seen.max() == 1  # no sample twice in a step
    assert min(p_values(noted.seen, BATCH / NUMBER)) > ALPHA
    assert trainer.engine.ledger.steps_by_sampler == {"groupclip": STEPS, "user": 0}


def test_twin_a_plain_trainers_shuffled_batches_are_rejected(tmp_path: Path) -> None:
    noted = Noted()
    args = settings(tmp_path, max_steps=STEPS, per_device_train_batch_size=BATCH, remove_unused_columns=False)
    trainer = transformers.Trainer(Rows(), args, noted, train_dataset=RECORDS)
    noted.trainer = trainer
    trainer.train()
    by_sample, by_size = p_values(noted.seen, BATCH / NUMBER)
    assert by_sample < ALPHA and by_size < ALPHA


def test_accelerate_does_not_shard_what_is_drawn(tmp_path: Path) -> None:
    given = work("sequence classification")
    trainer = PrivateTrainer(
        given.model, settings(tmp_path), given.collate, given.records, mechanism=plan(), groups="all-layer"
    )
    steps = trainer.get_train_dataloader()
    assert trainer.accelerator.prepare(steps) is steps
    drawn = next(iter(steps))
    with pytest.raises(TypeError, match="not iterable"):
        list(drawn)  # who looks at the samples of a step takes them from it
    with pytest.raises(AttributeError, match="the batches of a private run have no 'sampler'"):
        steps.sampler  # noqa: B018
    steps.close()


def test_a_batch_of_somebody_else_is_refused(tmp_path: Path) -> None:
    given = work("sequence classification")
    trainer = PrivateTrainer(
        given.model, settings(tmp_path), given.collate, given.records, mechanism=plan(), groups="all-layer"
    )
    with pytest.raises(gc.PrivacyViolation, match="training_step was given dict, and not a batch that groupclip drew"):
        trainer.training_step(given.model, given.collate(given.records))
