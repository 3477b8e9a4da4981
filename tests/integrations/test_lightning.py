"""Lightning: ``Trainer.fit`` is the own loop, stops at the budget, keeps the ledger, and refuses what would break it."""

from __future__ import annotations

import copy
import gc as collector
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

lightning = pytest.importorskip("lightning")

from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint  # noqa: E402

import groupclip as gc  # noqa: E402
from groupclip.integrations.lightning import PrivateBatches, PrivateTraining  # noqa: E402
from groupclip.noise import InsecureNoise  # noqa: E402
from law import ALPHA, p_values  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated"),  # Lightning's own
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended"),
]
KEY = bytes(range(32))
PLAN = gc.Mechanism(dataset_size=30, expected_batch_size=10, steps=7, noise_multiplier=1.0)


def records(number: int = 30) -> TensorDataset:
    draw = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(number, 5, generator=draw), torch.randint(0, 3, (number,), generator=draw))


class Module(lightning.LightningModule):
    """Calls a part of itself in its step, and logs there."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, labels = batch
        loss = F.cross_entropy(self.net(inputs), labels)
        self.log("secret", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("held_out", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


class ByHand(Module):
    """Optimizes by hand, with the module's own call."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        for inputs, labels in batch:
            self.manual_backward(F.cross_entropy(self(inputs), labels, reduction="none"))
        optimizer.step()
        if self.trainer.is_last_batch:
            self.lr_schedulers().step()


def trainer(folder: Path, *callbacks: Any, **others: Any) -> Any:
    given = dict(
        accelerator="cpu", devices=1, max_epochs=10, default_root_dir=folder, enable_progress_bar=False, logger=False,
        enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    return lightning.Trainer(callbacks=list(callbacks), **{**given, **others})


def private(**others: Any) -> PrivateTraining:
    return PrivateTraining("layer-wise", noise=InsecureNoise(3), **others)


def own_loop(precision: torch.dtype | None = None, alone: bool = False) -> dict[str, Tensor]:
    """``alone``: the loss is computed inside of what runs on every record; in half precision it is rounded elsewhere then."""
    module = Module()
    (optimizer,), (scheduler,) = module.configure_optimizers()
    engine = gc.attach(module, optimizer, "layer-wise", PLAN, noise=InsecureNoise(3))
    for step, batch in enumerate(gc.poisson_batches(records(), PLAN, 4, key=KEY)):
        for inputs, labels in batch:
            with torch.autocast("cpu", precision, enabled=precision is not None):
                if alone:
                    losses = engine.per_sample(lambda x, y: F.cross_entropy(module(x), y), inputs, labels)
                else:
                    losses = F.cross_entropy(module(inputs), labels, reduction="none")
            engine.backward(losses)
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 2:
            scheduler.step()
    engine.detach()
    return module.state_dict()


def equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return list(found) == list(expected) and all(torch.equal(found[name], value) for name, value in expected.items())


# ------------------------------------------------------------------ the same training


@pytest.mark.parametrize("kind", [Module, ByHand])
def test_it_is_the_own_loop_bit_for_bit_under_one_key(kind: type[Module], tmp_path: Path) -> None:
    module, callback = kind(), private()
    trainer(tmp_path, callback).fit(module, PrivateBatches(records(), PLAN, 4, key=KEY))
    assert callback.engine.ledger.steps == 7
    assert equal(module.state_dict(), own_loop())


@pytest.mark.parametrize("kind", [Module, ByHand])
def test_bf16_is_the_own_loop_under_autocast(kind: type[Module], tmp_path: Path) -> None:
    module = kind()
    trainer(tmp_path, private(), precision="bf16-mixed").fit(module, PrivateBatches(records(), PLAN, 4, key=KEY))
    found, exact = module.state_dict(), own_loop()
    assert equal(found, own_loop(torch.bfloat16, alone=kind is Module))
    assert max(float((found[name] - exact[name]).abs().max()) for name in exact) > 1e-5


def test_a_step_without_an_index_is_the_same(tmp_path: Path) -> None:
    class Short(Module):
        def training_step(self, batch: Any) -> dict[str, Tensor]:
            return {"loss": F.cross_entropy(self.net(batch[0]), batch[1])}

    module = Short()
    trainer(tmp_path, private()).fit(module, PrivateBatches(records(), PLAN, 4, key=KEY))
    assert equal(module.state_dict(), own_loop())


def test_without_noise_it_is_the_plain_trainer(tmp_path: Path) -> None:
    """Every record in every batch, thresholds that clip nothing: as Lightning without the callback, three steps."""
    plan = gc.Mechanism(dataset_size=30, expected_batch_size=30, steps=3, noise_multiplier=0.0)
    module, plain = Module(), Module()
    callback = PrivateTraining("layer-wise", clip="abadi", thresholds=1e6)
    trainer(tmp_path, callback).fit(module, PrivateBatches(records(), plan, 8))
    trainer(tmp_path, max_epochs=3).fit(plain, DataLoader(records(), batch_size=30))
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value, rtol=0, atol=1e-5)


def test_it_stops_at_the_budget_and_leaves_a_plain_module(tmp_path: Path) -> None:
    plan = gc.Mechanism(dataset_size=30, expected_batch_size=10, steps=7).calibrate(epsilon=3.0, delta=1e-4)
    module, callback = Module(), PrivateTraining("all-layer", delta=1e-4)
    running = trainer(tmp_path, callback, max_epochs=100)
    running.fit(module, PrivateBatches(records(), plan, 4), DataLoader(TensorDataset(*records()[:5]), batch_size=5))
    assert running.global_step == 7 and running.current_epoch == 3
    assert callback.engine.ledger.steps_by_sampler == {"groupclip": 7, "user": 0}
    assert 2.9 < callback.engine.epsilon(delta=1e-4) <= 3.0
    assert set(running.logged_metrics) == {"epsilon", "held_out"}
    assert running.logged_metrics["epsilon"] == pytest.approx(callback.engine.epsilon(delta=1e-4))
    assert type(module.net[0].weight) is nn.Parameter
    assert not {"training_step", "backward", "log", "log_dict"} & set(vars(module))
    assert "step" not in vars(running.optimizers[0]) or hasattr(running.optimizers[0].step, "_wrapped_by_lr_sched")
    module.net(torch.randn(2, 5)).sum().backward()
    with pytest.raises(gc.BudgetExceeded):
        trainer(tmp_path, callback).fit(module, PrivateBatches(records(), plan, 4))


def test_fewer_steps_may_be_made_and_another_fit_goes_on(tmp_path: Path) -> None:
    module, callback = Module(), PrivateTraining("all-layer")
    for done in (2, 4):
        trainer(tmp_path, callback, max_steps=2).fit(module, PrivateBatches(records(), PLAN, 4))
        assert callback.engine.ledger.steps_by_sampler == {"groupclip": done, "user": 0}


def test_batches_may_come_from_the_module_and_hold_no_record(tmp_path: Path) -> None:
    plan = gc.Mechanism(dataset_size=30, expected_batch_size=0.5, steps=60, noise_multiplier=1.0)

    class Whole(Module):
        def train_dataloader(self) -> PrivateBatches:
            return PrivateBatches(records(), plan, 4)

    callback = PrivateTraining("all-layer")
    trainer(tmp_path, callback).fit(Whole())
    assert callback.engine.ledger.steps_by_sampler == {"groupclip": 60, "user": 0}


# ------------------------------------------------------------------ the law of the batches


class Rows(lightning.LightningModule):
    """Notes which rows it is trained on, in each step."""

    def __init__(self, steps: int, number: int) -> None:
        super().__init__()
        self.table, self.seen = nn.Linear(1, 1), np.zeros((steps, number), dtype=int)

    def note(self, rows: list[Tensor]) -> Tensor:
        for row in rows:
            self.seen[self.trainer.global_step, int(row)] += 1
        return torch.stack(rows).unsqueeze(1)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.table(batch).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_batches_are_poisson_samples(tmp_path: Path) -> None:
    plan = gc.Mechanism(dataset_size=24, expected_batch_size=6, steps=240, noise_multiplier=1.0)
    module = Rows(240, 24)
    loader = PrivateBatches(torch.arange(24.0), plan, 5, collate=module.note)
    trainer(tmp_path, PrivateTraining("all-layer"), max_epochs=100).fit(module, loader)
    assert module.seen.max() == 1
    assert min(p_values(module.seen, 0.25)) > ALPHA


def test_twin_plain_shuffled_batches_are_rejected(tmp_path: Path) -> None:
    module = Rows(240, 24)
    loader = DataLoader(torch.arange(24.0), batch_size=6, shuffle=True, collate_fn=module.note)
    trainer(tmp_path, max_epochs=60).fit(module, loader)
    by_sample, by_size = p_values(module.seen, 0.25)
    assert by_sample < ALPHA and by_size < ALPHA


# ------------------------------------------------------------------ checkpoints


class Killed(lightning.Callback):
    def __init__(self, at: int) -> None:
        self._at = at

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self._at:
            raise ZeroDivisionError("killed")


def test_a_checkpoint_keeps_the_ledger_and_lost_steps_stay_spent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=2, save_top_k=-1)
    module, callback = Module(), PrivateTraining("all-layer")
    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path, callback, keep, Killed(5), enable_checkpointing=True).fit(
            module, PrivateBatches(records(), PLAN, 4)
        )
    assert type(module.net[0].weight) is nn.Parameter  # left plain
    saved = torch.load(tmp_path / "step=4.ckpt", weights_only=True)
    assert not any("groupclip" in name for name in saved["state_dict"])
    state = next(value for name, value in saved["callbacks"].items() if "PrivateTraining" in name)
    assert state["ledger"]["steps"] == {"groupclip": 4, "user": 0}

    del module, callback
    collector.collect()
    again, go_on = Module(), PrivateTraining("all-layer")
    running = trainer(tmp_path, go_on)
    running.fit(again, PrivateBatches(records(), PLAN, 4), ckpt_path=tmp_path / "step=4.ckpt")
    # two batches were charged since: one had its step, and one was drawn when the run was killed
    assert "2 steps were made after step=4.ckpt was saved" in caplog.text
    assert go_on.engine.ledger.steps == 7 and running.global_step == 5


def test_a_checkpoint_without_a_ledger_is_refused(tmp_path: Path) -> None:
    plain = trainer(tmp_path, max_epochs=1)
    plain.fit(Module(), DataLoader(records(), batch_size=10))
    plain.save_checkpoint(tmp_path / "plain.ckpt")
    with pytest.raises(gc.PrivacyViolation, match=r"plain\.ckpt holds no ledger of PrivateTraining"):
        trainer(tmp_path, PrivateTraining("all-layer")).fit(
            Module(), PrivateBatches(records(), PLAN, 4), ckpt_path=tmp_path / "plain.ckpt"
        )


# ------------------------------------------------------------------ what is seen


def test_what_the_step_logs_is_left_out_and_that_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    running = trainer(tmp_path, PrivateTraining("all-layer"))
    running.fit(Module(), PrivateBatches(records(), PLAN, 4))
    assert "secret" not in running.logged_metrics
    assert caplog.text.count("training_step logs 'secret', which is of training records and has no noise") == 1


def test_the_training_loss_can_be_asked_for_and_the_statement_tells_it(tmp_path: Path) -> None:
    callback = PrivateTraining("all-layer", unsafe_training_loss=True)
    running = trainer(tmp_path, callback)
    running.fit(Module(), PrivateBatches(records(), PLAN, 4))
    assert float(running.logged_metrics["train_loss"]) > 0
    assert "mean training loss" in callback.engine.statement(delta=1e-4)


# ------------------------------------------------------------------ what is refused


class TwoOptimizers(Module):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.net[0], self.net[2])], []

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class ClipsItself(Module):
    def configure_gradient_clipping(self, *_: Any) -> None: ...


class StepsItself(Module):
    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)


class BackpropagatesItself(Module):
    def backward(self, loss: Tensor, *_: Any) -> None:
        loss.backward()


class Mixes(Module):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


class GivesNothing(Module):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        return None


class GivesLosses(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.net(batch[0]).flatten()


class CallsAPart(ByHand):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        for inputs, labels in batch:
            self.manual_backward(F.cross_entropy(self.net(inputs), labels, reduction="none"))


class GivesTheMean(ByHand):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        for inputs, labels in batch:
            self.manual_backward(F.cross_entropy(self(inputs), labels))


class WithBatchNorm(Module):
    def __init__(self) -> None:
        super().__init__()
        self.net.append(nn.BatchNorm1d(3))


def joins() -> Any:
    return {"callbacks": [GradientAccumulationScheduler({0: 1, 2: 4})]}


REFUSED: list[tuple[type[Module], Callable[[], dict[str, Any]], str]] = [
    (Module, lambda: {"gradient_clip_val": 1.0}, r"gradient_clip_val=1\.0 clips a gradient .* Leave it out"),
    (Module, lambda: {"accumulate_grad_batches": 2}, r"accumulate_grad_batches=2 joins batches .* Leave it at 1"),
    (Module, joins, "GradientAccumulationScheduler joins batches"),
    (Module, lambda: {"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders_every_n_epochs makes a new loader"),
    (Module, lambda: {"overfit_batches": 1}, "overfit_batches takes the same batches again"),
    (Module, lambda: {"min_steps": 50}, r"min_steps=50 .* ask for 50 steps, and the mechanism plans 7"),
    (Module, lambda: {"min_epochs": 9}, "ask for 27 steps"),
    (ClipsItself, dict, r"ClipsItself\.configure_gradient_clipping is the class's own"),
    (StepsItself, dict, r"StepsItself\.optimizer_step is the class's own"),
    (BackpropagatesItself, dict, r"BackpropagatesItself\.backward is the class's own"),
    (Mixes, dict, r"Mixes\.on_after_batch_transfer is given several records at once"),
    (TwoOptimizers, dict, "configure_optimizers gives 2 optimizers"),
    (GivesNothing, dict, "training_step gave NoneType for a batch of one record"),
    (GivesLosses, dict, r"training_step gave \(3,\) for a batch of one record"),
    (CallsAPart, dict, r"outside a call of the model"),
    (GivesTheMean, dict, r"reduction='none'"),
    (WithBatchNorm, dict, "BatchNorm1d in training mode"),
]


@pytest.mark.parametrize(("kind", "others", "told"), REFUSED, ids=[told[:30] for _, _, told in REFUSED])
@pytest.mark.filterwarnings("ignore:.*overfit")
def test_what_would_break_it_is_refused_with_the_fix(
    kind: type[Module], others: Callable[[], dict[str, Any]], told: str, tmp_path: Path
) -> None:
    module = kind()
    before = copy.deepcopy(module.state_dict())
    given = others()
    more = given.pop("callbacks", [])
    with pytest.raises((gc.GroupClipError, ValueError), match=told):
        trainer(tmp_path, PrivateTraining("all-layer"), *more, **given).fit(module, PrivateBatches(records(), PLAN, 30))
    assert equal(module.state_dict(), before)
    assert type(module.net[0].weight) is nn.Parameter and not {"training_step", "backward"} & set(vars(module))


def test_a_scaler_is_refused(tmp_path: Path) -> None:
    running = trainer(tmp_path, PrivateTraining("all-layer"), precision="bf16-mixed")
    running.precision_plugin.scaler = torch.amp.GradScaler("cpu")  # what precision="16-mixed" makes on a GPU
    with pytest.raises(gc.PrivacyViolation, match=r"brings a scaler.*precision='bf16-mixed'"):
        running.fit(Module(), PrivateBatches(records(), PLAN, 4))


def test_a_plain_loader_is_refused(tmp_path: Path) -> None:
    with pytest.raises(gc.PrivacyViolation, match=r"train_dataloaders is DataLoader.*PrivateBatches"):
        trainer(tmp_path, PrivateTraining("all-layer")).fit(Module(), DataLoader(records(), batch_size=10))


def test_private_batches_without_the_callback_are_refused(tmp_path: Path) -> None:
    with pytest.raises(gc.PrivacyViolation, match=r"add PrivateTraining\(\.\.\) to the callbacks"):
        trainer(tmp_path).fit(Module(), PrivateBatches(records(), PLAN, 4))


def test_validation_on_the_training_data_is_refused(tmp_path: Path) -> None:
    data = records()
    with pytest.raises(gc.PrivacyViolation, match=r"val_dataloaders reads the training data.*held-out"):
        trainer(tmp_path, PrivateTraining("all-layer")).fit(
            Module(), PrivateBatches(data, PLAN, 4), DataLoader(data, batch_size=10)
        )


def test_a_wrong_number_of_records_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="the data set holds 29 samples"):
        PrivateBatches(records(29), PLAN, 4)


def test_there_is_no_engine_before_training() -> None:
    with pytest.raises(gc.PrivacyViolation, match=r"call trainer\.fit first"):
        PrivateTraining("all-layer").engine  # noqa: B018
