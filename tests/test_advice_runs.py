"""What an error advises works (see ``test_advice``), for steps, states, noise and batches: the run ends with the plan's epsilon."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

import groupclip as gc
from check_attached import ENTRY, attached, plan, same
from groupclip.errors import BudgetExceeded, CoverageError, GroupClipError, PrivacyViolation
from groupclip.noise.sources import InsecureNoise, SecureNoise
from groupclip.sampling.users import PerUser, user_losses

DATA = TensorDataset(*ENTRY.batch(40))
DELTA = 1e-5

Run = tuple[nn.Module, torch.optim.Optimizer, gc.Engine]
Parts = list[tuple[Tensor, ...]]


def step(run: Run, parts: Parts) -> None:
    model, optimizer, engine = run
    for part in parts:
        engine.backward(ENTRY.losses(model, tuple(part)))
    optimizer.step()
    optimizer.zero_grad()


def whole_run(run: Run, at_first: Callable[[Run, Parts], None] = step) -> bool:
    """All steps of the plan, the first one by ``at_first``: whether the epsilon is the plan's."""
    engine = run[2]
    assert engine.mechanism is not None
    for number, logical in enumerate(gc.poisson_batches(DATA, engine.mechanism, microbatch=4)):
        parts = [tuple(part) for part in logical]
        (at_first if number == 0 else step)(run, parts)
    return engine.epsilon(delta=DELTA) == engine.mechanism.epsilon(delta=DELTA)


@contextlib.contextmanager
def advised(error: type[Exception], advice: str) -> Iterator[None]:
    with pytest.raises(error, match=advice):
        yield


AGAIN = (
    r"call engine\.discard\(\) and backpropagate all micro-batches of this logical batch again \(keep them in a list\)"
)


def closure(run: Run, parts: Parts) -> None:
    optimizer = run[1]
    with advised(PrivacyViolation, r"Call engine\.backward first and then optimizer\.step\(\) without arguments"):
        optimizer.step(lambda: 0.0)
    step(run, parts)


def clipped_by_hand(run: Run, parts: Parts) -> None:
    model, optimizer, engine = run
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    with advised(PrivacyViolation, AGAIN):
        optimizer.step()
    engine.discard()
    step(run, parts)


def failed_half_way(run: Run, parts: Parts) -> None:
    model, optimizer, engine = run
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    with pytest.raises(RuntimeError, match="interrupted"):
        engine.backward(ENTRY.losses(model, ENTRY.batch(4)) + _Fails.apply(model(ENTRY.batch(4)[0]).sum(1)))
    for go_on in (optimizer.step, lambda: engine.backward(ENTRY.losses(model, ENTRY.batch(4)))):
        with advised(PrivacyViolation, AGAIN):
            go_on()
    engine.discard()
    step(run, parts)


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise RuntimeError("interrupted")


def not_cleared(run: Run, parts: Parts) -> None:
    model, optimizer, engine = run
    for part in parts:
        engine.backward(ENTRY.losses(model, part))
    optimizer.step()
    with advised(GroupClipError, r"call optimizer\.zero_grad\(\) before the next logical batch"):
        engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    optimizer.zero_grad()


def one_cleared(run: Run, parts: Parts) -> None:
    model, optimizer, engine = run
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    next(model.parameters()).grad = None
    with advised(PrivacyViolation, r"Clear all gradients by optimizer\.zero_grad\(\) after the step"):
        optimizer.step()
    engine.discard()
    step(run, parts)


def another_optimizer(run: Run, parts: Parts) -> None:
    model, _, engine = run
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    with advised(PrivacyViolation, r"attach the optimizer that steps, or detach the engine first"):
        other.step()
    engine.discard()
    step(run, parts)


def loss_scaler(run: Run, parts: Parts) -> None:
    model, optimizer, engine = run
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    with advised(PrivacyViolation, r"give engine\.backward a constant loss_scale"):
        scaler.step(optimizer)
    engine.discard()
    for part in parts:
        engine.backward(ENTRY.losses(model, part), loss_scale=1024.0)
    optimizer.step()
    optimizer.zero_grad()


def changing_hook(run: Run, parts: Parts) -> None:
    model, _, engine = run
    weight = next(model.parameters())
    seen: list[Tensor] = []

    def change(p: Tensor) -> None:
        assert p.grad is not None
        p.grad.mul_(2)

    def look(p: Tensor) -> None:
        assert p.grad is not None
        seen.append(p.grad.norm())

    handle = weight.register_post_accumulate_grad_hook(change)
    with advised(PrivacyViolation, "such a hook may look at gradients and no more"):
        engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    handle.remove()
    weight.register_post_accumulate_grad_hook(look)
    engine.discard()
    step(run, parts)
    assert len(seen) == len(parts)


def iterated_twice(run: Run, parts: Parts) -> None:
    logical = next(iter(gc.poisson_batches(DATA, plan(steps=7))))  # of another plan: a batch of this one would be left out
    kept = [part[0] for part in logical]
    with advised(PrivacyViolation, "Keep the micro-batches in a list"):
        list(logical)
    del logical
    assert all(len(run[0](x)) == len(x) for x in kept for _ in range(2))
    step(run, parts)


def state_in_a_batch(run: Run, parts: Parts) -> None:
    model, _, engine = run
    saved = engine.state_dict()
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    with advised(PrivacyViolation, r"or after optimizer\.step\(\); engine\.discard\(\) gives the batch up"):
        engine.load_state_dict(saved)
    engine.discard()
    engine.load_state_dict(saved)
    step(run, parts)


@pytest.mark.parametrize(
    "at_first",
    [
        closure, clipped_by_hand, failed_half_way, not_cleared, one_cleared, another_optimizer, loss_scaler, changing_hook,
        iterated_twice, state_in_a_batch,
    ],
)  # fmt: skip
def test_a_run_that_follows_advice_has_the_epsilon_of_its_plan(at_first: Callable[[Run, Parts], None]) -> None:
    run = attached()
    before = [p.detach().clone() for p in run[0].parameters()]
    assert whole_run(run, at_first)
    assert not same(run[0], before)


def test_a_batch_that_is_given_up_is_the_users_sampling() -> None:
    """The other half of that advice."""

    def give_up(run: Run, parts: Parts) -> None:
        run[2].backward(ENTRY.losses(run[0], ENTRY.batch(4)))
        run[2].discard()

    run = attached(mechanism=plan(steps=2))
    with advised(PrivacyViolation, "pass sampling_vouched_by_user=True"):
        whole_run(run, give_up)
    assert run[2].epsilon(delta=DELTA, sampling_vouched_by_user=True) == plan(steps=2).epsilon(delta=DELTA, steps=1)


def test_steps_past_the_plan() -> None:
    run = attached(mechanism=plan(steps=2))
    assert whole_run(run)
    with advised(BudgetExceeded, "or plan more steps in a new Mechanism before training starts"):
        step(run, [ENTRY.batch(4)])
    assert whole_run(attached(mechanism=plan(steps=3)))


def test_without_a_mechanism() -> None:
    model = ENTRY.model()
    engine = gc.attach(model, None, "layer-wise", None)
    with advised(PrivacyViolation, "attach with a calibrated Mechanism"):
        engine.epsilon(delta=DELTA)
    engine.detach()
    calibrated = plan(sigma=None).calibrate(epsilon=3.0, delta=DELTA)
    run = attached(model, mechanism=calibrated)
    assert whole_run(run)
    assert 2.9 < run[2].epsilon(delta=DELTA) <= 3.0


def test_noise_of_a_seed() -> None:
    run = attached(noise=InsecureNoise(0))
    with advised(
        PrivacyViolation, r"attach without noise= for secure noise \(mechanism\.epsilon\(delta=\.\.\) gives the figure"
    ):
        whole_run(run)
    run[2].detach()
    again = attached(run[0])
    assert whole_run(again)
    assert again[2].epsilon(delta=DELTA) == plan().epsilon(delta=DELTA)


def test_facts_that_cannot_be_changed() -> None:
    model, optimizer, engine = attached()
    for change in (
        lambda: setattr(engine, "thresholds", {}), lambda: engine.thresholds.__setitem__("0", 2.0),  # type: ignore[attr-defined]
    ):  # fmt: skip
        with advised((AttributeError, TypeError), r"[Dd]etach the engine and attach again"):  # type: ignore[arg-type]
            change()
    engine.detach()
    engine = gc.attach(model, optimizer, "layer-wise", plan(), thresholds=2.0)
    assert whole_run((model, optimizer, engine))
    engine.detach()
    assert whole_run(attached(model, thresholds=gc.Adaptive(quantile=0.5)))  # the other advice: they move by themselves


def test_noise_that_differs_from_group_to_group() -> None:
    groups = gc.partition(ENTRY.model(), "layer-wise").names
    engine = attached(thresholds=[float(i + 1) for i in range(len(groups))], allocation="threshold")[2]
    with advised(ValueError, r"ask for engine\.noise_stds"):
        print(engine.noise_std)
    assert set(engine.noise_stds) == set(engine.partition.names)


def test_noise_of_an_allocation_that_amounts_to_another_plan() -> None:
    names = gc.partition(ENTRY.model(), "layer-wise").names
    with pytest.raises(ValueError, match=r"Multiply every standard deviation by ([0-9.]+)") as refused:
        attached(allocation=dict.fromkeys(names, 0.5))
    factor = float(str(refused.value).rpartition(" ")[2])
    run = attached(allocation=dict.fromkeys(names, 0.5 * factor))
    assert whole_run(run)


@pytest.mark.parametrize("advice", ["the named allocations", "give the thresholds"])
def test_thresholds_that_move(advice: str) -> None:
    names = gc.partition(ENTRY.model(), "layer-wise").names
    if advice == "give the thresholds":
        with advised(ValueError, advice):
            gc.attach(ENTRY.model(), None, "layer-wise", None, thresholds=gc.Adaptive())
        with advised(ValueError, f"Use engine.backward\\(losses\\), or {advice}"):
            attached(thresholds=gc.Adaptive(), loss_reduction="mean")
        assert whole_run(attached(thresholds=gc.Adaptive()))
        assert whole_run(attached(thresholds=1.0, loss_reduction="mean"))
        return
    with advised(ValueError, f"use one of {advice}"):
        attached(thresholds=gc.Adaptive(), allocation=dict.fromkeys(names, 1.0))
    assert whole_run(attached(thresholds=gc.Adaptive(), allocation="threshold"))


# ------------------------------------------------------------------ what attach asks for


def test_a_mechanism_without_noise_multiplier() -> None:
    with advised(ValueError, r"use mechanism\.calibrate\(epsilon=\.\., delta=\.\.\)"):
        attached(mechanism=plan(sigma=None))
    assert whole_run(attached(mechanism=plan(sigma=None).calibrate(epsilon=2.0, delta=DELTA)))


def test_a_mechanism_without_an_optimizer() -> None:
    model = ENTRY.model()
    with advised(ValueError, "pass the optimizer, or mechanism=None to clip only"):
        gc.attach(model, None, "layer-wise", plan())
    gc.attach(model, None, "layer-wise", None).detach()
    assert whole_run(attached(model))


def test_noise_that_is_no_source() -> None:
    with advised(TypeError, r"leave it out for SecureNoise\(\)"):
        attached(noise=1.0)
    assert whole_run(attached())


def test_noise_that_is_copied() -> None:
    import copy

    noise = SecureNoise()
    with advised(PrivacyViolation, "Make a new one instead"):
        copy.deepcopy(noise)
    assert whole_run(attached(noise=SecureNoise()))


class Wrapper:
    """As accelerate's: has param_groups, and steps another optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    def register_step_pre_hook(self, hook: Any) -> Any:
        return self.optimizer.register_step_pre_hook(hook)

    def step(self) -> None:
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


def test_a_wrapped_optimizer() -> None:
    model = ENTRY.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with advised(TypeError, "Attach the torch optimizer itself, and wrap it afterwards"):
        gc.attach(model, Wrapper(optimizer), "layer-wise", plan())  # type: ignore[arg-type]
    engine = gc.attach(model, optimizer, "layer-wise", plan())
    assert whole_run((model, Wrapper(optimizer), engine))  # type: ignore[arg-type]


def test_an_optimizer_that_evaluates_several_times() -> None:
    model = ENTRY.model()
    with advised(PrivacyViolation, "use another optimizer"):
        gc.attach(model, torch.optim.LBFGS(model.parameters()), "layer-wise", plan())
    assert whole_run(attached(model))


@pytest.mark.parametrize("way", ["build", "freeze"])
def test_an_optimizer_of_other_parameters(way: str) -> None:
    model, extra = ENTRY.model(), nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([*model.parameters(), extra], lr=0.1)
    with advised(CoverageError, r"Build the optimizer from the attached model's parameters .*, or freeze the others"):
        gc.attach(model, optimizer, "layer-wise", plan())
    if way == "build":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    else:
        extra.requires_grad_(False)
    assert whole_run((model, optimizer, gc.attach(model, optimizer, "layer-wise", plan())))
    assert not bool(extra.any())


@pytest.mark.parametrize("way", ["None", "leave out"])
def test_an_optimizer_of_frozen_parameters_with_a_gradient(way: str) -> None:
    model = ENTRY.model()
    first = next(model.parameters())
    ENTRY.losses(model, ENTRY.batch(4)).sum().backward()
    first.requires_grad_(False)
    for p in list(model.parameters())[1:]:
        p.grad = None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with advised(CoverageError, r"Set it to None, or leave frozen parameters out of the optimizer"):
        gc.attach(model, optimizer, "layer-wise", plan())
    if way == "None":
        first.grad = None
    else:
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    before = first.detach().clone()
    assert whole_run((model, optimizer, gc.attach(model, optimizer, "layer-wise", plan())))
    assert torch.equal(first, before)


@pytest.mark.parametrize("way", ["add", "freeze"])
def test_an_optimizer_that_misses_parameters(way: str) -> None:
    model = ENTRY.model()
    first, *others = model.parameters()
    optimizer = torch.optim.SGD(others, lr=0.1)
    with advised(CoverageError, r"add them to the optimizer, or freeze them with requires_grad_\(False\)"):
        gc.attach(model, optimizer, "layer-wise", plan())
    if way == "add":
        optimizer.add_param_group({"params": [first]})
    else:
        first.requires_grad_(False)
    assert whole_run((model, optimizer, gc.attach(model, optimizer, "layer-wise", plan())))


# ------------------------------------------------------------------ states


def half_a_run(**options: Any) -> tuple[Run, list[Any]]:
    """Three of six steps, and the iterator that has the others."""
    run = attached(**options)
    batches = iter(gc.poisson_batches(DATA, plan(), microbatch=4))
    for _ in range(3):
        step(run, [tuple(part) for part in next(batches)])
    return run, [run[2].state_dict(), run[0].state_dict()]


def resumed(saved: list[Any], **options: Any) -> Run:
    run = attached(**options)
    run[0].load_state_dict(saved[1])
    run[2].load_state_dict(saved[0])
    return run


def goes_on(run: Run) -> bool:
    """The rest of the plan, in another process."""
    assert run[2].ledger is not None
    for logical in gc.poisson_batches(DATA, plan(), microbatch=4, start=run[2].ledger.steps):
        step(run, [tuple(part) for part in logical])
    return run[2].epsilon(delta=DELTA) == plan().epsilon(delta=DELTA)


@pytest.mark.parametrize(
    ("other", "advice"),
    [
        ({"thresholds": 2.0}, "attach with the same settings as the run to be resumed"),
        ({"style": "all-layer"}, "attach with the same settings as the run to be resumed"),
        ({"clip": "abadi"}, "attach with the same settings as the run to be resumed"),
        ({"noise": SecureNoise(bytes(32))}, r"Attach without noise=, for a fresh key"),
    ],
)  # fmt: skip
def test_a_state_of_other_settings(other: dict[str, Any], advice: str) -> None:
    run, saved = half_a_run()
    run[2].detach()
    with advised(PrivacyViolation, advice):
        resumed(saved, **other)
    run = resumed(saved)
    assert run[2].epsilon(delta=DELTA) == plan().epsilon(delta=DELTA, steps=3)
    assert goes_on(run)


def test_a_state_without_a_mechanism() -> None:
    _, saved = half_a_run()
    clipping = gc.attach(ENTRY.model(), None, "layer-wise", None)
    with advised(PrivacyViolation, "attach this engine as the saved run's was"):
        clipping.load_state_dict(saved[0])
    assert resumed(saved)[2].ledger.steps == 3  # type: ignore[union-attr]


def test_a_state_that_is_none() -> None:
    _, saved = half_a_run()
    with advised(ValueError, r"pass what engine\.state_dict\(\) returned"):
        attached()[2].load_state_dict(saved[1])
    assert resumed(saved)[2].ledger.steps == 3  # type: ignore[union-attr]


# ------------------------------------------------------------------ batches


def test_batches_of_another_sampling() -> None:
    mechanism = gc.Mechanism(
        dataset_size=40, expected_batch_size=40, steps=2, noise_multiplier=1.0, sampling="full-batch"
    )
    with advised(ValueError, r"use groupclip\.logical_batches, which draws so"):
        gc.poisson_batches(DATA, mechanism)
    assert [sum(len(part[0]) for part in batch) for batch in gc.logical_batches(DATA, mechanism)] == [40, 40]


def test_a_data_set_of_another_size() -> None:
    data = TensorDataset(*ENTRY.batch(50))
    with advised(ValueError, r"with dataset_size=len\(dataset\), and calibrate again"):
        gc.poisson_batches(data, plan())
    mechanism = gc.Mechanism(dataset_size=len(data), expected_batch_size=8, steps=2).calibrate(epsilon=2.0, delta=DELTA)
    assert len(list(gc.poisson_batches(data, mechanism))) == 2


def test_a_start_past_the_plan() -> None:
    run, _ = half_a_run()
    assert run[2].ledger is not None
    with advised(ValueError, r"pass engine\.ledger\.steps to go on"):
        gc.poisson_batches(DATA, plan(), start=7)
    assert [b.step for b in gc.poisson_batches(DATA, plan(), start=run[2].ledger.steps)] == [3, 4, 5]


def test_a_key_that_is_none() -> None:
    with advised(ValueError, "leave it out unless this is a test"):
        gc.poisson_batches(DATA, plan(), key=b"short")
    assert len(list(gc.poisson_batches(DATA, plan()))) == 6


def test_a_loader_and_a_stream() -> None:
    loader = DataLoader(DATA, batch_size=8, shuffle=True)
    with advised(TypeError, r"pass loader\.dataset, and drop the loader"):
        gc.poisson_batches(loader, plan())  # type: ignore[arg-type]
    assert len(list(gc.poisson_batches(loader.dataset, plan()))) == 6

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(DATA)  # type: ignore[call-overload]

    with advised(TypeError, r"load it into a map-style data set \(len and \[\]\)"):
        gc.poisson_batches(Stream(), plan())
    assert len(list(gc.poisson_batches(list(Stream()), plan()))) == 6


def test_padded_batches() -> None:
    with advised(ValueError, r"plan with sampling='truncated-poisson' and adjacency='zero-out'"):
        gc.logical_batches(DATA, plan(), padded=True)
    mechanism = gc.Mechanism(
        dataset_size=40, expected_batch_size=8, steps=3, noise_multiplier=1.0, sampling="truncated-poisson",
        adjacency="zero-out", max_batch_size=12,
    )  # fmt: skip
    model, optimizer, engine = attached(mechanism=mechanism)
    for number, logical in enumerate(gc.logical_batches(DATA, mechanism, 4, padded=True)):
        pieces = list(logical)
        if number == 0:
            for piece in pieces:
                engine.backward(ENTRY.losses(model, tuple(piece.samples)))
            if not all(bool(piece.weights.all()) for piece in pieces):
                with advised(PrivacyViolation, "Multiply the losses by the weights of the micro-batch"):
                    optimizer.step()
            engine.discard()
        for piece in pieces:
            engine.backward(ENTRY.losses(model, tuple(piece.samples)) * piece.weights)
        optimizer.step()
        optimizer.zero_grad()
    assert engine.epsilon(delta=DELTA) == mechanism.epsilon(delta=DELTA)


# ------------------------------------------------------------------ users

OWNERS = [i % 10 for i in range(40)]
BY_USER = gc.Mechanism(dataset_size=10, expected_batch_size=3, steps=3, noise_multiplier=1.0, unit="user")


def trained_by_user(**options: Any) -> bool:
    model = PerUser(ENTRY.model())
    run = attached(model, mechanism=BY_USER)
    for logical in gc.logical_batches(DATA, BY_USER, 8, **options):
        for x, y in logical:
            out = model(x)
            run[2].backward(
                user_losses(F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="none").unflatten(0, y.shape))
            )
        run[1].step()
        run[1].zero_grad()
    return run[2].epsilon(delta=DELTA) == BY_USER.epsilon(delta=DELTA)


@pytest.mark.parametrize(
    ("wrong", "advice", "right"),
    [
        ({}, "pass users=, whose each sample is", {"users": OWNERS}),
        ({"users": OWNERS[:-1]}, "give one a sample, in the data set's order", {"users": OWNERS}),
        (
            {"users": torch.tensor(OWNERS)}, r"by a text or a whole number \(tensor\.tolist\(\)\)",
            {"users": torch.tensor(OWNERS).tolist()},
        ),
        ({"users": OWNERS, "samples_per_user": 0}, "must be >= 1", {"users": OWNERS, "samples_per_user": 2}),
        ({"users": OWNERS, "padded": True}, "isn't available for users", {"users": OWNERS, "padded": False}),
        ({"users": [0] * 40}, r"dataset_size=number of users, and calibrate again", {"users": OWNERS}),
    ],
)  # fmt: skip
def test_batches_of_users(wrong: dict[str, Any], advice: str, right: dict[str, Any]) -> None:
    with advised(ValueError, advice):
        gc.logical_batches(DATA, BY_USER, 8, **wrong)
    assert trained_by_user(**right)


def test_users_for_a_plan_of_samples() -> None:
    with advised(ValueError, r"Mechanism\(unit='user', dataset_size=number of users, \.\.\)"):
        gc.logical_batches(DATA, plan(), users=OWNERS)
    assert trained_by_user(users=OWNERS)


def test_a_collate_function_that_gives_no_tensors() -> None:
    with advised(TypeError, r"Pass collate= that returns tensors"):
        trained_by_user(users=OWNERS, collate=lambda samples: ["text"] * len(samples))
    assert trained_by_user(users=OWNERS, collate=default_collate)


def test_inputs_and_losses_of_users() -> None:
    model = PerUser(ENTRY.model())
    x, y = ENTRY.batch(6)
    with advised(ValueError, r"it needs \[U, k, \.\.\] for every tensor"):
        model(x[:, 0])
    losses = F.cross_entropy(model(x.unflatten(0, (2, 3))).flatten(0, 1), y, reduction="none")
    with advised(ValueError, r"losses\.unflatten\(0, \(U, k\)\) if they are in one row"):
        user_losses(losses)
    torch.testing.assert_close(user_losses(losses.unflatten(0, (2, 3))), losses.view(2, 3).mean(1))
