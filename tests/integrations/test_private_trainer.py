"""A private Trainer against a plain one, and against a loop of one's own."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import groupclip as gc  # noqa: E402
from groupclip.integrations.transformers import PrivateTrainer, privatize  # noqa: E402
from groupclip.noise import InsecureNoise  # noqa: E402
from trainers import KEY, KINDS, Work, plan, settings, weights, work  # noqa: E402


def private(given: Work, folder: Path, mechanism: gc.Mechanism, **others: Any) -> PrivateTrainer:
    named = {"args": settings(folder), "groups": "layer-wise"} | others
    return PrivateTrainer(
        given.model, data_collator=given.collate, train_dataset=given.records, mechanism=mechanism, **named
    )


def furthest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert list(one) == list(other)
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def plainly_trained(given: Work, folder: Path, **others: Any) -> dict[str, Tensor]:
    """The weights after a plain Trainer has made three steps on all records at once."""
    args = settings(folder, per_device_train_batch_size=len(given.records), **others)
    trainer = transformers.Trainer(given.model, args, given.collate, train_dataset=given.records)
    before = weights(given.model)
    trainer.train()
    assert furthest(before, weights(given.model)) > 1e-3
    return weights(given.model)


NO_NOISE = {"noise_multiplier": 0.0, "sampling": "full-batch", "batch": 12}


@pytest.mark.parametrize("kind", KINDS)
def test_without_noise_and_clipping_it_is_a_plain_trainer(kind: str, tmp_path: Path) -> None:
    """To 1e-6 in float64 after three steps: micro-batches of 5, 5 and 2 against one batch of 12.

    The steps are of AdamW, and of plain gradient descent for causal models: transformers computes their loss in float32, and AdamW
    makes a step of the rounding where a gradient is zero but for that (the biases of keys).
    """
    given = work(kind)
    given.model.double()
    twin = Work(copy.deepcopy(given.model), given.records, given.collate)
    by = {"optim": "sgd", "learning_rate": 0.5} if kind == "causal LM" else {}
    expected = plainly_trained(twin, tmp_path, **by)
    trainer = private(given, tmp_path, plan(**NO_NOISE), clip="abadi", thresholds=1e9, args=settings(tmp_path, **by))
    trainer.train()
    assert furthest(weights(given.model), expected) < 1e-6


def test_twin_clipping_is_seen(tmp_path: Path) -> None:
    given = work("causal LM")
    given.model.double()
    twin = Work(copy.deepcopy(given.model), given.records, given.collate)
    expected = plainly_trained(twin, tmp_path)
    private(given, tmp_path, plan(**NO_NOISE), clip="abadi", thresholds=0.05).train()
    assert furthest(weights(given.model), expected) > 1e-4


def own_loop(given: Work, mechanism: gc.Mechanism, groups: str) -> dict[str, Tensor]:
    """Three steps of AdamW, written out."""
    given.model.train()
    optimizer = torch.optim.AdamW(given.model.parameters(), lr=1e-2, weight_decay=0.0, fused=True)
    engine = gc.attach(given.model, optimizer, groups, mechanism, noise=InsecureNoise(7))
    for batch in gc.logical_batches(given.records, mechanism, microbatch=5, collate=given.collate, key=KEY):
        for part in batch:
            engine.backward(given.model(**part).loss)
        optimizer.step()
        optimizer.zero_grad()
    return weights(given.model)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_own_loop_bit_for_bit_under_one_key(kind: str, tmp_path: Path) -> None:
    given, mechanism = work(kind, number=20, ragged=True), plan(20, 8)
    expected = own_loop(Work(copy.deepcopy(given.model), given.records, given.collate), mechanism, "block-wise")
    trainer = private(given, tmp_path, mechanism, groups="block-wise", sampling_key=KEY, noise=InsecureNoise(7))
    trainer.train()
    found = weights(given.model)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert trainer.engine.ledger.steps == 3


def test_twin_another_key_gives_other_weights(tmp_path: Path) -> None:
    given, mechanism = work("causal LM", number=20), plan(20, 8)
    expected = own_loop(Work(copy.deepcopy(given.model), given.records, given.collate), mechanism, "block-wise")
    trainer = private(given, tmp_path, mechanism, groups="block-wise", sampling_key=KEY[::-1], noise=InsecureNoise(7))
    trainer.train()
    assert furthest(weights(given.model), expected) > 1e-4


def test_an_empty_batch_is_a_step(tmp_path: Path) -> None:
    """Of 12 records, one in 1,200 is drawn a step: the chance of any in three steps is 3 %, and nothing here depends on it."""
    given = work("sequence classification")
    before = weights(given.model)
    trainer = private(given, tmp_path, plan(batch=0.01))
    output = trainer.train()
    assert (trainer.engine.ledger.steps, output.global_step) == (3, 3)
    assert trainer.engine.ledger.steps_by_sampler == {"groupclip": 3, "user": 0}
    assert furthest(weights(given.model), before) > 1e-3  # noise moves the weights


def test_a_sample_without_labelled_tokens_adds_nothing(tmp_path: Path) -> None:
    """Masking may leave out every token of a short text; the mean over no token is 0 / 0."""
    given = work("masked LM")
    twin = Work(copy.deepcopy(given.model), given.records, given.collate)
    without = copy.deepcopy(given.records)
    without[3]["labels"] = torch.full_like(without[3]["labels"], -100)
    private(Work(given.model, without, given.collate), tmp_path, plan(**NO_NOISE)).train()
    assert all(bool(w.isfinite().all()) for w in weights(given.model).values())
    left_out = [r for n, r in enumerate(twin.records) if n != 3]
    mechanism = plan(11, **(NO_NOISE | {"batch": 11}))
    # 11 samples over 11 and over 12: the direction of plain gradient descent is the same, the length isn't
    args = settings(tmp_path, optim="sgd", learning_rate=11 / 12)
    private(Work(twin.model, left_out, given.collate), tmp_path, mechanism, args=args).train()
    again = work("masked LM")
    args = settings(tmp_path, optim="sgd", learning_rate=1.0)
    private(Work(again.model, without, given.collate), tmp_path, plan(**NO_NOISE), args=args).train()
    assert furthest(weights(again.model), weights(twin.model)) < 1e-5


def smoothed(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    assert num_items_in_batch is None and len(labels) == 1  # a batch of one
    return 2.0 * F.cross_entropy(outputs["logits"], labels, label_smoothing=0.3)


class Doubled(PrivateTrainer):
    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        return smoothed(outputs, labels)


@pytest.mark.parametrize("way", ["compute_loss", "compute_loss_func", "label_smoothing_factor"])
def test_ones_own_loss_runs_on_every_sample_alone(way: str, tmp_path: Path) -> None:
    given, mechanism = work("sequence classification", number=20, ragged=True), plan(20, 8)
    twin = copy.deepcopy(given.model)
    optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-2, weight_decay=0.0, fused=True)
    engine = gc.attach(twin, optimizer, "layer-wise", mechanism, noise=InsecureNoise(7))
    scale = 1.0 if way == "label_smoothing_factor" else 2.0
    for batch in gc.logical_batches(given.records, mechanism, microbatch=5, collate=given.collate, key=KEY):
        for part in batch:
            logits = twin(input_ids=part["input_ids"], attention_mask=part["attention_mask"]).logits
            engine.backward(scale * F.cross_entropy(logits, part["labels"], reduction="none", label_smoothing=0.3))
        optimizer.step()
        optimizer.zero_grad()
    kind = Doubled if way == "compute_loss" else PrivateTrainer
    others = {"compute_loss_func": smoothed} if way == "compute_loss_func" else {}
    smoothing = {"label_smoothing_factor": 0.3} if way == "label_smoothing_factor" else {}
    trainer = kind(
        given.model, settings(tmp_path, **smoothing), given.collate, given.records, mechanism=mechanism, groups="layer-wise",
        noise=InsecureNoise(7), sampling_key=KEY, **others,
    )  # fmt: skip
    trainer.train()
    assert furthest(weights(given.model), weights(twin)) < 2e-5


def test_a_loss_that_is_no_number_for_one_sample_is_refused(tmp_path: Path) -> None:
    given = work("sequence classification")
    trainer = private(
        given,
        tmp_path,
        plan(batch=11),
        compute_loss_func=lambda outputs, labels, num_items_in_batch=None: outputs["logits"],
    )
    with pytest.raises(gc.PrivacyViolation, match="for a batch of one sample: it must give one number"):
        trainer.train()


def test_bf16_trains(tmp_path: Path) -> None:
    given = work("sequence classification", number=20)
    twin = copy.deepcopy(given.model)
    args = settings(tmp_path, bf16=True)
    trainer = private(given, tmp_path, plan(20, 8), args=args, sampling_key=KEY, noise=InsecureNoise(7))
    trainer.train()
    assert trainer.accelerator.mixed_precision == "bf16"
    exact = private(
        Work(twin, given.records, given.collate), tmp_path, plan(20, 8), sampling_key=KEY, noise=InsecureNoise(7)
    )
    exact.train()
    # AdamW's steps are 0.01 long each: near, and not equal
    assert 0 < furthest(weights(given.model), weights(twin)) < 0.06


def test_workers_read_the_same_batches(tmp_path: Path) -> None:
    given, mechanism = work("sequence classification", number=20), plan(20, 8)
    twin = Work(copy.deepcopy(given.model), given.records, given.collate)
    private(given, tmp_path, mechanism, sampling_key=KEY, noise=InsecureNoise(7)).train()
    args = settings(tmp_path, dataloader_num_workers=1)
    private(twin, tmp_path, mechanism, args=args, sampling_key=KEY, noise=InsecureNoise(7)).train()
    assert furthest(weights(given.model), weights(twin.model)) == 0


def test_columns_that_the_model_does_not_take_are_left_out(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    given = work("sequence classification")
    table = [{k: v.tolist() for k, v in r.items()} | {"text": "secret"} for r in given.records]
    trainer = PrivateTrainer(
        given.model, settings(tmp_path), transformers.default_data_collator, datasets.Dataset.from_list(table),
        mechanism=plan(), groups="all-layer",
    )  # fmt: skip
    trainer.train()
    assert trainer.engine.ledger.steps_by_sampler == {"groupclip": 3, "user": 0}


def test_activation_checkpoints_without_reentry(tmp_path: Path) -> None:
    given = work("causal LM", number=20)
    twin = Work(copy.deepcopy(given.model), given.records, given.collate)
    private(given, tmp_path, plan(20, 8), sampling_key=KEY, noise=InsecureNoise(7)).train()
    args = settings(tmp_path, activation_checkpointing=True, activation_checkpointing_kwargs={"use_reentrant": False})
    private(twin, tmp_path, plan(20, 8), args=args, sampling_key=KEY, noise=InsecureNoise(7)).train()
    assert furthest(weights(given.model), weights(twin.model)) < 1e-6


class Told(transformers.Seq2SeqTrainer):
    """Of somebody else: it weighs the loss."""

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        return (0.5 * loss[0], loss[1]) if isinstance(loss, tuple) else 0.5 * loss


@pytest.mark.parametrize("kind", [transformers.Trainer, transformers.Seq2SeqTrainer, Told])
def test_privatize_keeps_the_class_and_its_loss(kind: type, tmp_path: Path) -> None:
    given, mechanism = work("seq2seq LM", number=20, ragged=True), plan(20, 8)
    twin = Work(copy.deepcopy(given.model), given.records, given.collate)
    private(twin, tmp_path, mechanism, sampling_key=KEY, noise=InsecureNoise(7), clip="abadi", thresholds=1e6).train()
    args = transformers.Seq2SeqTrainingArguments(**_fields(settings(tmp_path)), predict_with_generate=True)
    trainer = kind(given.model, args, given.collate, train_dataset=given.records)
    found = privatize(
        trainer,
        mechanism=mechanism,
        groups="layer-wise",
        sampling_key=KEY,
        noise=InsecureNoise(7),
        clip="abadi",
        thresholds=1e6,
    )
    assert found is trainer and isinstance(trainer, kind)
    trainer.train()
    assert trainer.engine.ledger.steps == 3
    assert (furthest(weights(given.model), weights(twin.model)) == 0) == (kind is not Told)
    if kind is not transformers.Trainer:
        held_out = work("seq2seq LM", number=4, seed=1).records
        assert "eval_loss" in trainer.evaluate(held_out, max_new_tokens=3)
    with pytest.raises(gc.GroupClipError, match="private already"):
        privatize(trainer, mechanism=mechanism, groups="layer-wise")


def _fields(args: Any) -> dict[str, Any]:
    names = ("output_dir", "max_steps", "max_grad_norm", "per_device_train_batch_size", "report_to", "disable_tqdm",
             "save_strategy", "lr_scheduler_type", "learning_rate", "use_cpu")  # fmt: skip
    return {name: getattr(args, name) for name in names}


class Draws(transformers.Trainer):
    def get_train_dataloader(self) -> Any:
        return super().get_train_dataloader()


def test_privatize_refuses_a_class_with_batches_of_its_own(tmp_path: Path) -> None:
    given = work("causal LM")
    trainer = Draws(given.model, settings(tmp_path), given.collate, train_dataset=given.records)
    with pytest.raises(gc.PrivacyViolation, match=r"Draws\.get_train_dataloader is the class's own"):
        privatize(trainer, mechanism=plan(), groups="all-layer")
    assert type(trainer) is Draws and all(type(p) is nn.Parameter for p in given.model.parameters())
