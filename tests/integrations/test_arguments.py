"""Settings of a Trainer that a private run can't have: each is refused with its fix, before anything is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import groupclip as gc  # noqa: E402
from groupclip.integrations.transformers import PrivateTrainer, privatize  # noqa: E402
from groupclip.integrations.transformers.arguments import REFUSALS, planned_steps, steps_in_an_epoch  # noqa: E402
from trainers import plan, settings, work  # noqa: E402

#: Name of the setting -> (a value that is refused, what the error says to write).
WRONG: dict[str, tuple[Any, str]] = {
    "max_grad_norm": (1.0, "max_grad_norm=0, and PrivateTrainer"),
    "gradient_accumulation_steps": (2, "gradient_accumulation_steps=1: a batch is as large as"),
    "train_sampling_strategy": ("group_by_length", "train_sampling_strategy='random'"),
    "dataloader_drop_last": (True, "dataloader_drop_last=False"),
    "data_seed": (3, "data_seed=None"),
    "auto_find_batch_size": (True, "auto_find_batch_size=False and a smaller per_device_train_batch_size"),
    "fp16": (True, "bf16=True, or float32"),
    "neftune_noise_alpha": (5.0, "neftune_noise_alpha=None"),
    "include_num_input_tokens_seen": ("all", "include_num_input_tokens_seen='no'"),
    "optim": (transformers.training_args.OptimizerNames.GALORE_ADAMW_LAYERWISE, "optim='adamw_torch'"),
    "debug": ([transformers.debug_utils.DebugOption.UNDERFLOW_OVERFLOW], "debug=''"),
    "n_gpu": (2, "CUDA_VISIBLE_DEVICES=0"),
    "deepspeed": ("zero2.json", "deepspeed=None"),
    "fsdp": ([transformers.trainer_utils.FSDPOption.FULL_SHARD], "leave fsdp out"),
    "hub_strategy": (transformers.trainer_utils.HubStrategy.CHECKPOINT, "hub_strategy='end' or 'every_save'"),
    "packing": (True, "packing=False: one record a row"),
    "eval_packing": (True, "eval_packing=False"),
    "padding_free": (True, "padding_free=False"),
}


def test_every_refusal_has_its_test() -> None:
    assert [refusal.name for refusal in REFUSALS] == list(WRONG)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("optim", "galore_adamw_layerwise"), ("debug", "underflow_overflow"), ("hub_strategy", "checkpoint"),
        ("train_sampling_strategy", "group_by_length"), ("include_num_input_tokens_seen", "all"),
    ],
)  # fmt: skip
def test_the_values_are_those_that_transformers_makes_of_what_is_written(
    name: str, written: str, tmp_path: Path
) -> None:
    assert getattr(settings(tmp_path, **{name: written}), name) == WRONG[name][0]


@pytest.mark.parametrize("way", ["PrivateTrainer", "privatize"])
@pytest.mark.parametrize("name", WRONG)
def test_a_setting_is_refused_with_its_fix(name: str, way: str, tmp_path: Path) -> None:
    given, args = work("sequence classification"), settings(tmp_path / "out")
    value, fix = WRONG[name]
    trainer = transformers.Trainer(given.model, args, given.collate, train_dataset=given.records)
    vars(args)["_n_gpu" if name == "n_gpu" else name] = value
    with pytest.raises(gc.PrivacyViolation) as refused:
        if way == "privatize":
            privatize(trainer, mechanism=plan(), groups="all-layer")
        else:
            PrivateTrainer(given.model, args, given.collate, given.records, mechanism=plan(), groups="all-layer")
    assert str(refused.value).startswith(f"{name}=") and fix in str(refused.value)
    assert all(type(p) is nn.Parameter for p in given.model.parameters())
    assert type(trainer) is transformers.Trainer


def test_twin_a_trainer_with_none_of_them_is_made(tmp_path: Path) -> None:
    given = work("sequence classification")
    trainer = PrivateTrainer(
        given.model, settings(tmp_path), given.collate, given.records, mechanism=plan(), groups="all-layer"
    )
    assert repr(trainer.engine.ledger) == "Ledger(0 of 3 steps, sampling: none)"


def test_a_setting_that_was_changed_afterwards_is_refused_when_training_begins(tmp_path: Path) -> None:
    given = work("sequence classification")
    trainer = PrivateTrainer(
        given.model, settings(tmp_path), given.collate, given.records, mechanism=plan(), groups="all-layer"
    )
    trainer.args.max_grad_norm = 1.0
    with pytest.raises(gc.PrivacyViolation, match=r"max_grad_norm=1\.0"):
        trainer.train()
    assert trainer.engine.ledger.steps == 0


def made(folder: Path, **others: Any) -> PrivateTrainer:
    given = work("sequence classification")
    named = {"args": settings(folder), "train_dataset": given.records, "mechanism": plan()} | others
    return PrivateTrainer(
        given.model, data_collator=named.pop("data_collator", given.collate), groups="all-layer", **named
    )


def test_a_collator_that_joins_records_is_refused(tmp_path: Path) -> None:
    collator = transformers.DataCollatorWithFlattening()
    with pytest.raises(
        gc.PrivacyViolation, match="data_collator is DataCollatorWithFlattening, which puts several records"
    ):
        made(tmp_path, data_collator=collator)


def test_no_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="args is None: pass TrainingArguments"):
        made(tmp_path, args=None)


def test_a_model_for_each_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(gc.PrivacyViolation, match="model_init makes a new model at each train"):
        made(tmp_path, model_init=lambda: work("sequence classification").model)


def test_a_search_is_refused(tmp_path: Path) -> None:
    with pytest.raises(gc.PrivacyViolation, match="hyperparameter_search trains many times"):
        made(tmp_path).hyperparameter_search(n_trials=3)


def test_another_number_of_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"train_dataset holds 11 samples, and the mechanism was planned for dataset_size=12"
    ):
        made(tmp_path, train_dataset=work("sequence classification", number=11).records)


def test_a_plan_of_users_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unit='user', and a Trainer's batches are of samples"):
        made(tmp_path, mechanism=plan(unit="user"))


def test_what_is_no_mechanism_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="mechanism is NoneType"):
        made(tmp_path, mechanism=None)


@pytest.mark.parametrize("evaluated", ["records", "named"])
def test_evaluation_on_the_training_data_is_refused(evaluated: str, tmp_path: Path) -> None:
    """Also for load_best_model_at_end: the best of the checkpoints would be chosen by a statistic without noise."""
    given = work("sequence classification")
    data = given.records if evaluated == "records" else {"train": given.records}
    args = settings(
        tmp_path, load_best_model_at_end=True, eval_strategy="steps", save_strategy="steps", eval_steps=1, save_steps=1
    )
    with pytest.raises(gc.PrivacyViolation, match="eval_dataset is train_dataset"):
        PrivateTrainer(given.model, args, given.collate, given.records, data, mechanism=plan(), groups="all-layer")
    assert all(type(p) is nn.Parameter for p in given.model.parameters())
    trainer = PrivateTrainer(
        given.model, settings(tmp_path), given.collate, given.records, mechanism=plan(), groups="all-layer"
    )
    with pytest.raises(gc.PrivacyViolation, match="eval_dataset is train_dataset"):
        trainer.evaluate(data)


def test_steps_past_the_plan_are_refused(tmp_path: Path) -> None:
    with pytest.raises(gc.BudgetExceeded, match="max_steps=4, and the mechanism plans 3 steps"):
        made(tmp_path, args=settings(tmp_path, max_steps=4))


def test_epochs_must_be_the_steps_of_the_plan(tmp_path: Path) -> None:
    args = settings(tmp_path, max_steps=-1, num_train_epochs=2)
    mechanism = plan(batch=4, steps=6)  # 3 steps an epoch
    assert steps_in_an_epoch(mechanism) == 3 and planned_steps(args, mechanism) == 6
    with pytest.raises(
        ValueError, match=r"num_train_epochs=2 are 6 steps .* and the mechanism plans 7\. Write max_steps=7"
    ):
        planned_steps(args, plan(batch=4, steps=7))
    trainer = made(tmp_path, args=args, mechanism=mechanism)
    trainer.train()
    assert trainer.engine.ledger.steps == trainer.state.global_step == 6
    assert trainer.state.epoch == 2.0


def test_a_plan_of_less_than_an_epoch_is_a_part_of_one(tmp_path: Path) -> None:
    mechanism = plan(batch=2, steps=3)  # 6 steps an epoch
    with pytest.raises(ValueError, match=r"num_train_epochs=1 are 6 steps \(6 an epoch"):
        planned_steps(settings(tmp_path, max_steps=-1, num_train_epochs=1), mechanism)
    trainer = made(tmp_path, args=settings(tmp_path, max_steps=-1, num_train_epochs=0.5), mechanism=mechanism)
    trainer.train()
    assert trainer.engine.ledger.steps == 3 and trainer.state.epoch == 0.5


def test_fewer_steps_than_planned_spend_less(tmp_path: Path) -> None:
    trainer = made(tmp_path, args=settings(tmp_path, max_steps=2), mechanism=plan(steps=5))
    trainer.train()
    assert trainer.engine.epsilon(delta=1e-5) == plan(steps=5).epsilon(delta=1e-5, steps=2)
    trainer.train()  # two more
    assert trainer.engine.ledger.steps_by_sampler == {"groupclip": 4, "user": 0}
    with pytest.raises(gc.BudgetExceeded, match=r"4 of 5 planned steps are released, and train\(\) would make 2 more"):
        trainer.train()
    assert trainer.engine.ledger.steps == 4


def test_a_failed_call_leaves_the_trainer_as_it_was(tmp_path: Path) -> None:
    given = work("sequence classification")
    trainer = transformers.Trainer(given.model.eval(), settings(tmp_path), given.collate, train_dataset=given.records)
    with pytest.raises((gc.CoverageError, ValueError)):
        privatize(trainer, mechanism=plan(), groups={"bert.*": "one"})  # the classifier is in no group
    assert type(trainer) is transformers.Trainer and trainer.optimizer is None and not given.model.training
    assert privatize(trainer, mechanism=plan(), groups="all-layer").train().global_step == 3
