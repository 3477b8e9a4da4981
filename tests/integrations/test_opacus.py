"""Opacus's shape: programs that make its calls run under both libraries, with their import lines alone exchanged."""

from __future__ import annotations

import itertools
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)  # fmt: skip

import groupclip as gc
import groupclip.integrations.opacus as ours
from groupclip.distributed.ranks import Ranks
from groupclip.integrations.opacus import BatchMemoryManager, ModuleValidator, PrivacyEngine, arguments, privacy_engine
from groupclip.noise import InsecureNoise
from law import ALPHA, p_values

PROGRAMS = Path(__file__).parent / "opacus_programs"
OURS = "groupclip.integrations.opacus"

#: Program, size of its data, and how it is called.
CASES = [
    pytest.param(name, size, options, id=f"{name}{''.join(f'-{k}={v}' for k, v in options.items())}")
    for name, size, options in [
        ("mnist", 24, {}),
        ("cifar10", 24, {}),
        ("cifar10", 24, {"clip_per_layer": True}),
        ("char_lstm", 12, {}),
        ("imdb", 16, {}),
        ("imdb", 16, {"reduction": "sum"}),
        ("imdb", 16, {"ghost": True}),
        ("dcgan", 16, {}),
        ("dcgan", 16, {"apart": True}),
        ("bert_snli", 16, {}),
    ]
]


def program(name: str, library: str) -> Callable[..., Any]:
    """Its ``main`` under one of the libraries."""
    text = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
    if library != "opacus":
        text, exchanged = re.subn(r"^from opacus[\w.]* import", f"from {library} import", text, flags=re.M)
        assert exchanged
    if "from transformers" in text:
        pytest.importorskip("transformers")
    module = ModuleType(f"{name}_under_{library.rpartition('.')[2]}_{library.count('.')}")
    sys.modules[module.__name__] = module  # Opacus pickles models
    exec(compile(text, f"{name} under {library}", "exec"), vars(module))
    return module.main


class Notes:
    """What each call of ``optimizer.step`` left: weights and gradients of the parameters that train.

    ``summed``: the gradients where weights moved. In the middle of a logical batch p.grad means something else in each library.
    """

    def __init__(self, in_pieces: bool) -> None:
        self.weights: list[dict[str, Tensor]] = []
        self.summed: list[dict[str, Tensor]] = []
        self._in_pieces = in_pieces  # then the first call moves nothing

    def __call__(self, model: nn.Module, optimizer: Any) -> None:
        named = {n.removeprefix("_module."): p for n, p in model.named_parameters() if p.requires_grad}
        before = next((w for w in reversed(self.weights) if list(w) == list(named)), None)  # of this model
        moved = not self._in_pieces if before is None else any(not torch.equal(p, before[n]) for n, p in named.items())
        self.weights.append({n: p.detach().clone() for n, p in named.items()})
        if moved:
            self.summed.append({n: p.grad.detach().clone() for n, p in named.items() if p.grad is not None})


def run(name: str, library: str, sigma: float, batch_size: int, epochs: int, **options: Any) -> tuple[Notes, Any]:
    notes = Notes(name in ("cifar10", "bert_snli"))
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus's own
        return notes, program(name, library)(sigma, batch_size, epochs, notes, **options)


def close(found: list[dict[str, Tensor]], expected: list[dict[str, Tensor]], atol: float) -> None:
    assert [sorted(one) for one in found] == [sorted(one) for one in expected]
    for one, other in zip(found, expected, strict=True):
        for name, value in other.items():
            torch.testing.assert_close(one[name], value, rtol=2e-5, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("name", "size", "options"), CASES)
def test_the_clipped_sums_are_opacuss_own(name: str, size: int, options: dict[str, Any]) -> None:
    """Without noise, and with every record in every batch: the gradients that are applied, and the weights, step by step."""
    pytest.importorskip("opacus")
    (ours, _), (theirs, _) = run(name, OURS, 0.0, size, 3, **options), run(name, "opacus", 0.0, size, 3, **options)
    assert len(theirs.summed) >= 3
    close(ours.summed, theirs.summed, atol=2e-7)
    close(ours.weights, theirs.weights, atol=2e-6)


def test_twin_another_threshold_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opacus")

    def looser(*args: Any, thresholds: float, **others: Any) -> gc.Engine:
        return gc.attach(*args, thresholds=1.01 * thresholds, **others)

    monkeypatch.setattr(privacy_engine, "attach", looser)
    (ours, _), (theirs, _) = run("mnist", OURS, 0.0, 24, 1), run("mnist", "opacus", 0.0, 24, 1)
    with pytest.raises(AssertionError):
        close(ours.summed, theirs.summed, atol=2e-7)


SAMPLED = [case for case in CASES if "apart" not in str(case.id)]


@pytest.mark.parametrize(("name", "size", "options"), SAMPLED)
def test_they_run_with_noise_on_poisson_batches(
    name: str, size: int, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    _, private = run(name, OURS, 1.5, 2, 2, **options)  # batches of 2 on average: many are empty
    steps = 2 * size // 2
    assert private.engine.ledger.steps_by_sampler == {"groupclip": steps, "user": 0}
    assert private.accountant.history == [(1.5, 2 / size, steps)]
    delta = 8e-5 if name == "char_lstm" else 1e-5
    figure = "RDP" if name == "cifar10" else None
    plan = gc.Mechanism(dataset_size=size, expected_batch_size=2, steps=steps, noise_multiplier=1.5)
    epsilon = plan.spent(delta=delta, accountant=figure).epsilon
    assert private.get_epsilon(delta) == pytest.approx(epsilon, rel=1e-3)  # on a PLD grid of a longer plan
    assert f"epsilon = {private.get_epsilon(delta):.2f}" in capsys.readouterr().out


def test_two_steps_on_one_batch_have_no_epsilon() -> None:
    """As many generated images as real ones, in a step of their own: that step depends on the batch as the other does."""
    with pytest.raises(gc.PrivacyViolation, match=r"8 of 16 steps were .* not on exactly one whole batch"):
        run("dcgan", OURS, 1.5, 2, 2, apart=True)


def test_a_budget_is_kept_and_no_step_goes_past_it() -> None:
    _, private = run("bert_snli", OURS, 0.0, 2, 2, target_epsilon=4.0)
    assert 0.99 * 4 <= private.get_epsilon(1e-5) <= 4
    work = Work(epochs=2, target=4.0)
    for _ in range(2):
        work.epoch()
    assert work.private.get_epsilon(1e-5) <= 4
    with pytest.raises(gc.BudgetExceeded, match="all 20 planned steps are released"):
        work.epoch()


# ------------------------------------------------------------------ one small training


def plain() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    draw = torch.Generator().manual_seed(1)
    records = TensorDataset(torch.randn(30, 5, generator=draw), torch.randint(0, 3, (30,), generator=draw))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(records, batch_size=3)


class Work:
    def __init__(self, sigma: float = 1.0, epochs: int | None = None, target: float = 0.0, **options: Any) -> None:
        model, optimizer, loader = plain()
        self.private = PrivacyEngine(secure_mode=options.pop("secure_mode", False))
        given = dict(module=model, optimizer=optimizer, data_loader=loader, max_grad_norm=0.5, **options)
        if epochs is None:
            made = self.private.make_private(**given, noise_multiplier=sigma)
        else:
            made = self.private.make_private_with_epsilon(
                **given, target_epsilon=target, target_delta=1e-5, epochs=epochs
            )
        self.first, self.optimizer, self.loader = made[0], made[1], made[-1]
        self.model = model

    def backward(self, batch: Any) -> None:
        F.cross_entropy(self.model(batch[0]), batch[1]).backward()

    def epoch(self, steps: int | None = None) -> None:
        for batch in itertools.islice(self.loader, steps):
            self.backward(batch)
            self.optimizer.step()
            self.optimizer.zero_grad()


def test_nothing_is_wrapped() -> None:
    work = Work()
    assert work.first is work.model and list(work.model.state_dict()) == list(plain()[0].state_dict())
    assert work.optimizer.original_optimizer.param_groups is work.optimizer.param_groups
    assert isinstance(work.optimizer, torch.optim.Optimizer) and work.optimizer.state_dict()["param_groups"][0]["lr"] == 0.1
    assert (work.optimizer.noise_multiplier, work.optimizer.max_grad_norm, work.optimizer.expected_batch_size) == (1.0, 0.5, 3)
    assert len(work.loader) == 10 and work.loader.sample_rate == 0.1
    work.private.engine.detach()
    F.cross_entropy(work.model(torch.randn(4, 5)), torch.zeros(4, dtype=torch.long)).backward()


def test_wrap_model_false_gives_what_cleans_up() -> None:
    work = Work(wrap_model=False)
    work.epoch()
    work.first.cleanup()
    assert type(work.model[0].weight) is nn.Parameter
    assert work.private.get_epsilon(1e-5) > 0  # what was spent stays spent


def test_batches_are_poisson_samples() -> None:
    model, optimizer, _ = plain()
    rows = DataLoader(TensorDataset(torch.arange(24).float().unsqueeze(1).repeat(1, 5)), batch_size=6)
    _, _, loader = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=rows, noise_multiplier=1.0, max_grad_norm=1.0
    )
    seen = np.zeros((240, 24), dtype=int)
    step = 0
    while step < 240:
        for (batch,) in loader:
            model(batch).sum(1).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            np.add.at(seen[step], batch[:, 0].long().numpy(), 1)
            step += 1
    assert seen.max() == 1
    assert min(p_values(seen, 0.25)) > ALPHA


def test_twin_opacuss_plain_loader_is_rejected() -> None:
    """Shuffled batches of one size, which ``poisson_sampling=False`` would keep."""
    seen = np.zeros((240, 24), dtype=int)
    rows = DataLoader(TensorDataset(torch.arange(24)), batch_size=6, shuffle=True)
    for epoch in range(60):
        for n, (batch,) in enumerate(rows):
            np.add.at(seen[4 * epoch + n], batch.numpy(), 1)
    assert max(p_values(seen, 0.25)) < ALPHA


def test_the_sum_of_losses_is_not_divided() -> None:
    """The same updates as of the mean, at a learning rate that is smaller by the batch size; noise too."""
    given = dict(module=plain()[0], data_loader=plain()[2], noise_multiplier=1.0, max_grad_norm=0.5)
    found = {}
    for reduction in ("mean", "sum"):
        model, optimizer, loader = plain()
        given.update(module=model, data_loader=loader)
        made = PrivacyEngine().make_private(**given, optimizer=optimizer, loss_reduction=reduction)
        made[1]._engine._step._noise = InsecureNoise(3)  # noise that comes again
        F.cross_entropy(model(torch.ones(4, 5)), torch.zeros(4, dtype=torch.long), reduction=reduction).backward()
        made[1].step()
        found[reduction] = [p.grad.clone() for p in model.parameters()]
    for mean, total in zip(found["mean"], found["sum"], strict=True):
        torch.testing.assert_close(total, 3 * mean)


@pytest.mark.parametrize("when", ["before", "after"])
def test_schedulers_of_the_learning_rate_act(when: str) -> None:
    """On the user's own optimizer, also one that was made before; and PyTorch sees the steps."""
    model, optimizer, data = plain()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5) if when == "before" else None
    _, private, batches = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=data, noise_multiplier=1.0, max_grad_norm=0.5
    )
    scheduler = scheduler or torch.optim.lr_scheduler.StepLR(private, 1, gamma=0.5)
    for x, y in itertools.islice(batches, 2):
        F.cross_entropy(model(x), y).backward()
        private.step()
        private.zero_grad()
        scheduler.step()  # warns where it saw no step before
    assert optimizer.param_groups[0]["lr"] == private.param_groups[0]["lr"] == 0.025


def test_other_processes_read_where_the_loader_says_so() -> None:
    model, optimizer, data = plain()
    read = DataLoader(data.dataset, batch_size=3, num_workers=1)
    _, private, batches = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=read, noise_multiplier=1.0, max_grad_norm=0.5
    )
    for most in (2, 5):  # each size of the pieces has processes of its own
        with BatchMemoryManager(data_loader=batches, max_physical_batch_size=most, optimizer=private) as pieces:
            for x, y in pieces:
                F.cross_entropy(model(x), y).backward()
                private.step()
                private.zero_grad()
    assert private._engine.ledger.steps_by_sampler == {"groupclip": 20, "user": 0}


def test_groups_of_groupclip() -> None:
    work = Work(groups="uniform:2")
    assert len(work.private.engine.partition) == 2
    work.epoch()
    assert work.private.get_epsilon(1e-5) > 0
    assert "epsilon" in work.private.statement(1e-5)


def test_secure_mode_is_noise_on_a_grid() -> None:
    assert type(Work(secure_mode=True).private.engine.noise) is gc.HardenedNoise
    assert type(Work().private.engine.noise) is not gc.HardenedNoise


def test_a_step_hook_sees_private_gradients_and_a_closure_runs_once() -> None:
    work, seen = Work(), []
    work.optimizer.attach_step_hook(lambda optimizer: seen.append(work.model[0].weight.grad.clone()))
    batch = next(iter(work.loader))
    calls = []

    def closure() -> Tensor:
        calls.append(1)
        loss = F.cross_entropy(work.model(batch[0]), batch[1])
        loss.backward()
        return loss

    assert isinstance(work.optimizer.step(closure), Tensor)
    assert calls == [1] and torch.equal(seen[0], work.model[0].weight.grad)
    assert work.private.accountant.history[0][2] == len(work.private.accountant) == 1


def test_what_was_accounted_for_cannot_be_changed() -> None:
    work = Work()
    for name in ("noise_multiplier", "max_grad_norm", "expected_batch_size"):
        with pytest.raises(gc.PrivacyViolation, match=rf"optimizer\.{name} can't be changed"):
            setattr(work.optimizer, name, 0.1)


# ------------------------------------------------------------------ pieces


def test_pieces_give_the_step_of_the_whole() -> None:
    found = []
    for most in (30, 4):
        model, optimizer, loader = plain()
        whole = DataLoader(loader.dataset, batch_size=30)
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model, optimizer=optimizer, data_loader=whole, noise_multiplier=0.0, max_grad_norm=0.5
        )
        steps = 0
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=most, optimizer=optimizer) as pieces:
            assert len(pieces) == (1 if most == 30 else 8)
            for x, y in pieces:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                steps += 1
        assert steps == len(pieces)
        found.append([p.detach().clone() for p in model.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_an_abandoned_batch_does_not_come_into_the_next_step() -> None:
    work = Work()
    manager = BatchMemoryManager(data_loader=work.loader, max_physical_batch_size=1, optimizer=work.optimizer)
    left = False
    with manager as pieces:
        for batch in pieces:
            work.backward(batch)
            work.optimizer.step()
            if work.optimizer._within:
                left = True
                break
            work.optimizer.zero_grad()
    assert left and all(p.grad is None for p in work.model.parameters())
    work.epoch(1)
    with pytest.raises(gc.PrivacyViolation, match="not on exactly one whole batch"):
        work.private.get_epsilon(1e-5)


def test_pieces_and_whole_batches_take_turns() -> None:
    work = Work()
    work.epoch()
    with BatchMemoryManager(data_loader=work.loader, max_physical_batch_size=2, optimizer=work.optimizer) as pieces:
        for batch in pieces:
            work.backward(batch)
            work.optimizer.step()
            work.optimizer.zero_grad()
    work.epoch()
    assert work.private.engine.ledger.steps_by_sampler == {"groupclip": 30, "user": 0}


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        (dict(data_loader=[]), TypeError, "data_loader is list: pass the one that PrivacyEngine.make_private returned"),
        (dict(optimizer=None), TypeError, "optimizer is NoneType"),
        (dict(max_physical_batch_size=0), ValueError, "max_physical_batch_size=0 must be >= 1"),
        (dict(max_physical_batch_size=2.5), TypeError, "max_physical_batch_size=2.5 must be a whole number"),
    ],
)
def test_a_manager_of_other_things_is_refused(given: dict[str, Any], error: type[Exception], told: str) -> None:
    work = Work()
    right = dict(data_loader=work.loader, max_physical_batch_size=2, optimizer=work.optimizer)
    with pytest.raises(error, match=told):
        BatchMemoryManager(**{**right, **given})


def test_an_empty_batch_of_a_collate_function() -> None:
    model, optimizer, loader = plain()
    records = loader.dataset

    def collate(samples: list[tuple[Tensor, Tensor]]) -> dict[str, Any]:
        return {"x": torch.stack([x for x, _ in samples]), "more": (torch.stack([y for _, y in samples]),)}

    made = DataLoader(records, batch_size=1, collate_fn=collate)
    _, optimizer, batches = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=made, noise_multiplier=1.0, max_grad_norm=1.0
    )
    sizes = []
    for batch in batches:
        F.cross_entropy(model(batch["x"]), batch["more"][0]).backward()
        optimizer.step()
        optimizer.zero_grad()
        sizes.append(len(batch["x"]))
        assert batch["x"].shape[1:] == (5,) and batch["more"][0].dtype == torch.long
    assert 0 in sizes  # of 30 batches of one record on average; all but one run in 10^6 has one
    batches.collate_fn = lambda samples: ["text"] * len(samples)
    with pytest.raises(TypeError, match="collate_fn gives a batch that holds str, of which there is no empty one"):
        batches.empty()


# ------------------------------------------------------------------ what is refused


class Stream(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(30))


def loader(**others: Any) -> DataLoader[Any]:
    return DataLoader(plain()[2].dataset, **others)


REFUSED = [
    (lambda: dict(poisson_sampling=False), r"poisson_sampling=False keeps shuffled batches.*Leave it out"),
    (lambda: dict(noise_generator=torch.Generator()), r"noise_generator= makes noise that its seed gives again.*leave it out"),
    (lambda: dict(rand_on_empty=True), r"rand_on_empty=True trains on a random row.*leave it out"),
    (lambda: dict(batch_first=False), r"batch_first=False: dimension 0.*transpose inside the model's forward"),
    (lambda: dict(loss_reduction="none"), "loss_reduction='none' must be 'mean' or 'sum'"),
    (lambda: dict(clipping="adaptive"), r"clipping='adaptive' moves the threshold.*gc.Adaptive"),
    (lambda: dict(target_unclipped_quantile=0.5), "clipping='adaptive' moves the threshold"),
    (lambda: dict(clipping="automatic"), "clipping='automatic' must be 'flat' or 'per_layer'; groups="),
    (lambda: dict(clipping="per_layer", groups="uniform:2"), "clipping='per_layer' is a grouping already"),
    (lambda: dict(grad_sample_mode="ghost_fsdp"), r"grad_sample_mode='ghost_fsdp'.*write grad_sample_mode='ghost'"),
    (lambda: dict(grad_sample_mode="ghost_tp"), "grad_sample_mode='ghost_tp'"),
    (lambda: dict(grad_sample_mode="no_op"), r"grad_sample_mode='no_op'.*leave it out"),
    (lambda: dict(grad_sample_mode="x"), "grad_sample_mode='x' is unknown; use one of hooks"),
    (lambda: dict(criterion=nn.CrossEntropyLoss(reduction="none")), "criterion has reduction='none', and loss_reduction='mean'"),
    (lambda: dict(criterion=nn.NLLLoss(weight=torch.ones(3))), r"NLLLoss.*divides by the weights.*reduction='sum'"),
    (lambda: dict(data_loader=[1, 2]), "data_loader is list: pass a torch DataLoader"),
    (lambda: dict(data_loader=loader(batch_size=None)), r"data_loader has batch_sampler=.*DataLoader\(dataset, batch_size=B\)"),
    (
        lambda: dict(data_loader=loader(batch_sampler=BatchSampler(range(30), 3, False))),
        "data_loader has batch_sampler=BatchSampler",
    ),
    (
        lambda: dict(data_loader=loader(batch_size=3, sampler=SubsetRandomSampler(range(9)))),
        r"sampler=SubsetRandomSampler.*Subset\(dataset, rows\)",
    ),
    (
        lambda: dict(data_loader=loader(batch_size=3, sampler=RandomSampler(range(30), replacement=True))),
        "data_loader has sampler=RandomSampler",
    ),
    (
        lambda: dict(data_loader=loader(batch_size=3, sampler=WeightedRandomSampler([1.0] * 30, 30))),
        "Three ways work.*weigh the losses.*largest rate.*public records",
    ),
    (lambda: dict(data_loader=loader(batch_size=3, worker_init_fn=print)), "data_loader has worker_init_fn="),
    (lambda: dict(max_grad_norm=0.0), r"thresholds=0.0: must be positive"),
    (lambda: dict(noise_multiplier=-1.0), r"noise_multiplier=-1.0 must be >= 0"),
    (lambda: dict(module=nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))), "BatchNorm1d in training mode"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "told"), REFUSED, ids=[told[:40] for _, told in REFUSED])
def test_what_cannot_be_right_is_refused_and_nothing_is_changed(given: Callable[[], dict[str, Any]], told: str) -> None:
    model, optimizer, right = plain()
    options = given()
    before = optimizer if "module" not in options else torch.optim.SGD(options["module"].parameters(), lr=0.1)
    call = dict(module=model, optimizer=before, data_loader=right, noise_multiplier=1.0, max_grad_norm=0.5)
    private = PrivacyEngine()
    with pytest.raises((gc.PrivacyViolation, ValueError, TypeError), match=told):
        private.make_private(**{**call, **options})
    assert type(model[0].weight) is nn.Parameter and private.accountant.engine is None
    with pytest.raises(gc.PrivacyViolation, match="call make_private first"):
        private.get_epsilon(1e-5)
    if "noise_multiplier" not in options:
        call = {**call, "target_epsilon": 3.0, "target_delta": 1e-5, "epochs": 1}
        del call["noise_multiplier"]
        with pytest.raises((gc.PrivacyViolation, ValueError, TypeError), match=told):
            private.make_private_with_epsilon(**{**call, **options})
    private.make_private(module=model, optimizer=optimizer, data_loader=right, noise_multiplier=1.0, max_grad_norm=0.5)


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "ranks", lambda: Ranks(0, 2))  # what a process group of two gives
    with pytest.raises(gc.PrivacyViolation, match=r"one of several processes.*DistributedDataParallel or fully_shard"):
        Work()


def test_a_stream_is_refused() -> None:
    model, optimizer, _ = plain()
    with pytest.raises(TypeError, match=r"data_loader reads Stream, a stream.*map-style"):
        PrivacyEngine().make_private(
            module=model, optimizer=optimizer, data_loader=DataLoader(Stream(), batch_size=3), noise_multiplier=1.0,
            max_grad_norm=1.0,
        )  # fmt: skip


def test_one_privacy_engine_is_of_one_model() -> None:
    work = Work()
    model, optimizer, right = plain()
    with pytest.raises(gc.GroupClipError, match="make a PrivacyEngine for each model"):
        work.private.make_private(
            module=model, optimizer=optimizer, data_loader=right, noise_multiplier=1.0, max_grad_norm=0.5
        )


def test_the_loader_of_an_earlier_run_serves_another_one() -> None:
    """As in programs that train several times: the second make_private is given what the first returned."""
    first = Work()
    model, optimizer, _ = plain()
    again = PrivacyEngine()
    _, private, batches = again.make_private(
        module=model, optimizer=optimizer, data_loader=first.loader, noise_multiplier=1.0, max_grad_norm=0.5
    )
    assert len(batches) == len(first.loader) and batches.sample_rate == first.loader.sample_rate
    for inputs, labels in batches:
        F.cross_entropy(model(inputs), labels).backward()
        private.step()
        private.zero_grad()
    assert again.engine.ledger.steps_by_sampler == {"groupclip": len(batches), "user": 0}
    assert first.private.engine.ledger.steps == 0 and again.get_epsilon(1e-5) > 0


@pytest.mark.parametrize(("name", "told"), [("gdp", "central limit theorem.*'prv' or 'rdp'"), ("pld", "'pld' is unknown")])
def test_an_accountant_that_is_no_bound_is_refused(name: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        PrivacyEngine(accountant=name)


def test_a_known_generator_is_not_used_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer, _ = plain()
    seeded = loader(batch_size=3, generator=torch.Generator().manual_seed(0))
    PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=seeded, noise_multiplier=1.0, max_grad_norm=1.0
    )
    assert "generator= isn't used: batches are drawn under a secret key" in caplog.text


IMPORTED = ("DPDDP", "DifferentiallyPrivateDistributedDataParallel", "UniformWithReplacementSampler", "make_functional")


@pytest.mark.parametrize("name", IMPORTED)
def test_names_that_programs_import_without_need_are_refused_where_they_are_called(name: str) -> None:
    """Such as for several processes: the published CIFAR-10 example imports its wrapper, and trains on one without it."""
    found: dict[str, Any] = {}
    exec(f"from {OURS} import {name}", found)
    with pytest.raises(gc.PrivacyViolation, match=f"{name} isn't in {OURS}: "):
        found[name](plain()[0])


@pytest.mark.parametrize("name", ["GradSampleModule", "DPLightningDataModule", "ExponentialNoise", "get_noise_multiplier"])
def test_names_of_opacus_that_are_not_here_say_what_to_write(name: str) -> None:
    with pytest.raises(ImportError, match=f"has no {name}: "):
        exec(f"from {OURS} import {name}")
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        ours.nonsense  # noqa: B018


# ------------------------------------------------------------------ checkpoints


def test_a_checkpoint_keeps_what_was_spent(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    work = Work(epochs=2, target=4.0)
    work.epoch(7)
    work.private.save_checkpoint(
        path=path, module=work.model, optimizer=work.optimizer, checkpoint_dict={"epoch": 1}
    )
    spent, weights = work.private.get_epsilon(1e-5), work.model.state_dict()
    again = Work(epochs=2, target=4.0)
    entries = again.private.load_checkpoint(path=path, module=again.model, optimizer=again.optimizer)
    assert entries["epoch"] == 1 and again.private.get_epsilon(1e-5) == spent
    assert all(torch.equal(again.model.state_dict()[name], value) for name, value in weights.items())
    again.epoch()
    again.epoch(3)
    assert again.private.engine.ledger.steps == 20
    with pytest.raises(gc.BudgetExceeded):
        again.epoch()


def test_a_checkpoint_of_another_plan_or_of_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    work = Work(sigma=1.0)
    work.epoch(2)
    work.private.save_checkpoint(path=path, module=work.model)
    other = Work(sigma=2.0)
    before = [p.detach().clone() for p in other.model.parameters()]
    with pytest.raises(gc.PrivacyViolation, match="another plan"):
        other.private.load_checkpoint(path=path, module=other.model)
    torch.save({"module_state_dict": work.model.state_dict()}, path)
    with pytest.raises(gc.PrivacyViolation, match="doesn't say what its weights have spent"):
        other.private.load_checkpoint(path=path, module=other.model)
    assert all(torch.equal(p, b) for p, b in zip(other.model.parameters(), before, strict=True))


# ------------------------------------------------------------------ ModuleValidator


def mixing() -> nn.Module:
    return nn.ModuleDict({
        "one": nn.Sequential(nn.Conv1d(3, 12, 2), nn.BatchNorm1d(12)),
        "two": nn.Sequential(nn.Conv2d(3, 7, 2), nn.BatchNorm2d(7, affine=False)),
        "instance": nn.InstanceNorm2d(6, affine=True, track_running_stats=True),
        "fine": nn.GroupNorm(2, 6),
    })  # fmt: skip


def test_the_validator_replaces_as_opacuss_does() -> None:
    validators = pytest.importorskip("opacus.validators")
    module = mixing()
    errors = ModuleValidator.validate(module)
    assert [str(e).partition(" is ")[0] for e in errors] == ["module 'one.1'", "module 'two.1'", "module 'instance'"]
    with pytest.raises(gc.PrivacyViolation, match=r"module 'one\.1' is BatchNorm1d.*fix\(module\) replaces such layers"):
        ModuleValidator.validate(module, strict=True)
    fixed, theirs = ModuleValidator.fix_and_validate(module), validators.ModuleValidator.fix(module)
    assert str(fixed["one"]) == str(theirs["one"])
    assert isinstance(fixed["two"][1], nn.GroupNorm) and fixed["two"][1].num_groups == 1
    assert not fixed["instance"].track_running_stats and list(fixed.state_dict()) == list(
        name for name in module.state_dict() if "running" not in name and "num_batches" not in name
    )
    assert isinstance(module["one"][1], nn.BatchNorm1d)  # the module itself stays
    assert type(ModuleValidator.fix(module, replace_bn_with_in=True)["one"][1]) is nn.InstanceNorm1d
    assert ModuleValidator.fix(module, num_groups=1)["one"][1].num_groups == 1
    assert type(ModuleValidator.fix(nn.BatchNorm1d(4))) is nn.GroupNorm
    with pytest.raises(ValueError, match="num_groups is of GroupNorm"):
        ModuleValidator.fix(module, num_groups=1, replace_bn_with_in=True)
    with pytest.raises(ValueError, match="SyncBatchNorm doesn't say of how many dimensions"):
        ModuleValidator.fix(nn.SyncBatchNorm(4), replace_bn_with_in=True)
    private = PrivacyEngine()
    assert not private.is_compatible(module=module) and private.is_compatible(module=fixed)
    private.validate(module=private.get_compatible_module(module))
