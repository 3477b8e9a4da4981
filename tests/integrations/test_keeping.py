"""Checkpoints keep the ledger, no crash makes it too small, and what is logged is public."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import groupclip as gc  # noqa: E402
from groupclip.integrations.keeping import go_on_from, open_journal  # noqa: E402
from groupclip.integrations.transformers import PrivateTrainer  # noqa: E402
from groupclip.noise import InsecureNoise  # noqa: E402
from trainers import KEY, Work, plan, settings, weights, work  # noqa: E402

SAVED = {"save_strategy": "steps", "save_steps": 2}


def made(folder: Path, steps: int = 6, given: Work | None = None, **others: Any) -> PrivateTrainer:
    given = given or work("sequence classification")
    args = settings(folder, **({"max_steps": steps, "logging_steps": 1} | SAVED | others.pop("args", {})))
    named = {"mechanism": plan(steps=steps), "groups": "block-wise"} | others
    return PrivateTrainer(given.model, args, given.collate, given.records, **named)


class Stops(transformers.TrainerCallback):
    """Stops in a step, as a crash would (``hard``) or as ``should_training_stop`` does."""

    def __init__(self, step: int, hard: bool) -> None:
        self.step, self.hard = step, hard

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            control.should_training_stop = True
            if self.hard:
                raise KeyboardInterrupt


def test_a_clean_stop_loses_nothing(tmp_path: Path) -> None:
    first = made(tmp_path, callbacks=[Stops(4, hard=False)])
    first.train()
    assert first.engine.ledger.steps == 4
    second = made(tmp_path)
    seen = second.train(resume_from_checkpoint=True)
    assert seen.global_step == second.engine.ledger.steps == 6
    assert second.engine.ledger.steps_by_sampler == {"groupclip": 6, "user": 0}
    assert second.engine.epsilon(delta=1e-5) == plan(steps=6).epsilon(delta=1e-5)
    assert second.state.epoch == 2.0  # 3 steps an epoch


def test_the_weights_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    first = made(tmp_path, callbacks=[Stops(4, hard=False)])
    first.train()
    second = made(tmp_path, given=work("sequence classification", seed=9), args={"max_steps": 4})
    second._load_from_checkpoint(str(tmp_path / "checkpoint-4"))
    expected = weights(first.model)
    assert all(torch.equal(w, expected[name]) for name, w in weights(second.model).items())


def test_steps_after_the_checkpoint_stay_spent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A crash in step 5 of 6, after the checkpoint of step 4: one update is left to be made."""
    first = made(tmp_path, callbacks=[Stops(5, hard=True)])
    with pytest.raises(KeyboardInterrupt):
        first.train()
    second = made(tmp_path)
    seen = second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert "1 steps were made after checkpoint-4 was saved" in caplog.text
    assert second.engine.ledger.steps_by_sampler == {"groupclip": 6, "user": 0}
    assert seen.global_step == 5  # 4 and one
    assert (tmp_path / "checkpoint-5" / "groupclip_engine.json").is_file()


def test_the_end_of_the_budget_saves_nothing_where_nothing_is_saved(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path, callbacks=[Stops(5, hard=True)]).train()
    second = made(tmp_path, args={"save_strategy": "no"})
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert second.engine.ledger.steps == 6 and not (tmp_path / "checkpoint-5").exists()


def test_a_step_that_failed_before_its_noise_stays_spent(tmp_path: Path) -> None:
    """Its batch was drawn, and another one would be drawn in its place."""

    class Fails(PrivateTrainer):
        def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
            if self.state.global_step == 3:
                raise RuntimeError("in step 4")
            return super().training_step(model, inputs, num_items_in_batch)

    given = work("sequence classification")
    args = settings(tmp_path, max_steps=6, **SAVED)
    first = Fails(given.model, args, given.collate, given.records, mechanism=plan(steps=6), groups="block-wise")
    with pytest.raises(RuntimeError, match="in step 4"):
        first.train()
    assert first.engine.ledger.steps == 3
    second = made(tmp_path)
    second.train(resume_from_checkpoint=True)  # of step 2: two steps are lost
    assert second.engine.ledger.steps_by_sampler == {"groupclip": 6, "user": 0}
    assert second.state.global_step == 4


def test_going_on_without_the_checkpoint_counts_what_was_left_out(tmp_path: Path) -> None:
    class Fails(PrivateTrainer):
        failed = False

        def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
            if not self.failed:
                self.failed = True
                raise RuntimeError("in step 1")
            return super().training_step(model, inputs, num_items_in_batch)

    given = work("sequence classification")
    trainer = Fails(
        given.model,
        settings(tmp_path, max_steps=2),
        given.collate,
        given.records,
        mechanism=plan(steps=6),
        groups="all-layer",
    )
    with pytest.raises(RuntimeError, match="in step 1"):
        trainer.train()
    trainer.train()
    assert trainer.engine.ledger.steps == 3  # one that failed, and two
    with pytest.raises(gc.PrivacyViolation):  # a batch was left out, and which one may depend on what is in it
        trainer.engine.epsilon(delta=1e-5)


def test_noise_begun_anew_inside_a_process_is_counted_after_a_crash(tmp_path: Path) -> None:
    """The model gets another type after 3 steps of 4 bands. Killed after the 4th: 2 rounds, and not the 1 of 4 in a row."""
    banded = gc.Mechanism(
        dataset_size=40, expected_batch_size=8, steps=8, noise_multiplier=3.0, adjacency="zero-out", bands=4
    )
    data = torch.utils.data.TensorDataset(torch.randn(40, 3, generator=torch.Generator().manual_seed(0)))

    def attached() -> tuple[nn.Module, Any, gc.Engine]:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer, gc.attach(model, optimizer, "all-layer", banded)

    model, optimizer, engine = attached()
    journal, saved, batches = open_journal(tmp_path, engine), engine.state_dict(), iter(gc.poisson_batches(data, banded))
    for step in range(4):
        if step == 3:
            model.double()
        journal.charge()
        for (x,) in next(batches):
            engine.backward(model(x.to(model.weight.dtype)).square().sum(1))
        optimizer.step()
        optimizer.zero_grad()
    assert engine.ledger is not None and engine.ledger.rounds == 2
    journal.close()
    again = attached()[2]
    go_on_from(again, saved, tmp_path, "the beginning")
    assert again.ledger is not None
    assert (again.ledger.steps, again.ledger.rounds) == (4, 2)
    assert again.epsilon(delta=1e-5) == engine.epsilon(delta=1e-5) > banded.epsilon(delta=1e-5, steps=4)


def test_a_checkpoint_without_a_ledger_is_refused(tmp_path: Path) -> None:
    made(tmp_path, callbacks=[Stops(2, hard=False)]).train()
    (tmp_path / "checkpoint-2" / "groupclip_engine.json").unlink()
    second = made(tmp_path)
    before = weights(second.model)
    with pytest.raises(
        gc.PrivacyViolation, match=r"has no groupclip_engine\.json: it wasn't saved by a private trainer"
    ):
        second.train(resume_from_checkpoint=True)
    assert all(torch.equal(w, before[name]) for name, w in weights(second.model).items())


@pytest.mark.parametrize("content", ["{", "{}", '{"format": "another", "engine": {}}'])
def test_a_damaged_ledger_is_refused(content: str, tmp_path: Path) -> None:
    made(tmp_path, callbacks=[Stops(2, hard=False)]).train()
    (tmp_path / "checkpoint-2" / "groupclip_engine.json").write_text(content)
    with pytest.raises(gc.PrivacyViolation, match="is damaged"):
        made(tmp_path).train(resume_from_checkpoint=True)


def test_a_missing_journal_is_refused(tmp_path: Path) -> None:
    made(tmp_path, callbacks=[Stops(2, hard=False)]).train()
    shutil.rmtree(tmp_path / "_groupclip")
    with pytest.raises(gc.PrivacyViolation, match="it counts the steps whose results may have been seen"):
        made(tmp_path).train(resume_from_checkpoint=True)


def test_another_plan_is_refused(tmp_path: Path) -> None:
    made(tmp_path, callbacks=[Stops(2, hard=False)]).train()
    second = made(tmp_path, mechanism=plan(steps=6, noise_multiplier=0.5))
    with pytest.raises(gc.PrivacyViolation, match="the saved ledger is of another plan"):
        second.train(resume_from_checkpoint=True)
    assert second.engine.ledger.steps == 0


def test_a_finished_run_does_not_go_on(tmp_path: Path) -> None:
    made(tmp_path).train()
    with pytest.raises(gc.BudgetExceeded, match="all 6 planned steps are released"):
        made(tmp_path).train(resume_from_checkpoint=True)


def test_checkpoints_hold_no_key(tmp_path: Path) -> None:
    made(tmp_path, sampling_key=KEY, noise=InsecureNoise(7)).train()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if KEY in path.read_bytes() or KEY.hex().encode() in path.read_bytes()]


# ---------------------------------------------------------------------- what is logged


class Heard(transformers.TrainerCallback):
    """What TensorBoard, Weights & Biases and others are told."""

    def __init__(self) -> None:
        self.logs: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.logs.append(dict(logs))


PUBLIC = {
    "learning_rate",
    "epoch",
    "epsilon",
    "total_flos",
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
}


def test_logs_hold_epsilon_and_nothing_of_the_batches(tmp_path: Path) -> None:
    heard = Heard()
    trainer = made(tmp_path, callbacks=[heard])
    output = trainer.train()
    assert {name for row in heard.logs for name in row} == PUBLIC
    told = [row["epsilon"] for row in heard.logs]
    assert told == sorted(told) and len(told) == 7
    assert told[-1] == trainer.engine.epsilon(delta=gc.default_delta(12))
    assert all(row["total_flos"] == 0 for row in heard.logs if "total_flos" in row)
    assert math.isnan(output.training_loss) and "train_loss" not in output.metrics
    state = json.loads((tmp_path / "checkpoint-6" / "trainer_state.json").read_text())
    assert {name for row in state["log_history"] for name in row} == {"learning_rate", "epoch", "epsilon", "step"}
    assert trainer.engine.record(delta=1e-5).unsafe_statistics == ()


def test_the_training_loss_is_logged_if_asked_for_and_the_statement_says_so(tmp_path: Path) -> None:
    heard = Heard()
    given = work("sequence classification")
    trainer = made(
        tmp_path, given=given, callbacks=[heard], unsafe_training_loss=True, mechanism=plan(steps=6, batch=11.5)
    )
    output = trainer.train()
    losses = [row["loss"] for row in heard.logs if "loss" in row]
    assert len(losses) == 6 and 0.5 < losses[0] < 3  # about log(3), by 11 or 12 of 11.5 samples
    assert output.training_loss == pytest.approx(sum(losses) / 6, abs=1e-6)
    assert trainer.engine.record(delta=1e-5).unsafe_statistics == ("mean training loss",)
    assert not any("grad_norm" in row for row in heard.logs)


def test_no_epsilon_is_logged_where_none_is_claimed(tmp_path: Path) -> None:
    heard = Heard()
    made(tmp_path, callbacks=[heard], sampling_key=KEY).train()
    assert heard.logs and not any("epsilon" in row for row in heard.logs)


def test_the_best_of_held_out_records_is_loaded(tmp_path: Path) -> None:
    given = work("sequence classification")
    args = settings(
        tmp_path,
        max_steps=6,
        load_best_model_at_end=True,
        eval_strategy="steps",
        eval_steps=2,
        metric_for_best_model="loss",
        **SAVED,
    )
    held_out = work("sequence classification", number=9, seed=3).records
    trainer = PrivateTrainer(
        given.model, args, given.collate, given.records, held_out, mechanism=plan(steps=6), groups="block-wise"
    )
    trainer.train()
    losses = {row["step"]: row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row}
    best = min(losses, key=lambda step: losses[step])
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best}")
    assert trainer.evaluate()["eval_loss"] == pytest.approx(losses[best], abs=1e-6)
    assert trainer.engine.ledger.steps == 6


def test_tensorboard_is_told_as_ever(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    made(tmp_path, args={"report_to": "tensorboard"}).train()
    assert list(tmp_path.rglob("events.out.tfevents*"))


def test_epochs_end_where_they_did_also_after_going_on_inside_one(tmp_path: Path) -> None:
    """3 steps an epoch: evaluations after steps 3 and 6, whether the run was stopped after step 4 or not."""
    held_out = work("sequence classification", number=5, seed=3).records
    given, callbacks = work("sequence classification"), [Stops(4, hard=False)]
    evaluated = []
    for goes_on in (False, True):
        trainer = PrivateTrainer(
            given.model,
            settings(tmp_path, max_steps=6, eval_strategy="epoch", **SAVED),
            given.collate,
            given.records,
            held_out,
            mechanism=plan(steps=6),
            groups="block-wise",
            callbacks=callbacks,
        )
        trainer.train(resume_from_checkpoint=goes_on)
        evaluated.append([(row["step"], row["epoch"]) for row in trainer.state.log_history if "eval_loss" in row])
        given, callbacks = work("sequence classification"), []
    assert evaluated[0] == [(3, 1.0), (4, pytest.approx(4 / 3))]  # and once where it stopped
    assert evaluated[1][-1] == (6, 2.0) and len(evaluated[1]) == len({step for step, _ in evaluated[1]})
