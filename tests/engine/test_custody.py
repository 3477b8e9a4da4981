"""What happens to ``p.grad`` between the backward pass and the step: nothing that the engine doesn't know of."""

from __future__ import annotations

import gc as garbage
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.weak import TensorWeakRef

import groupclip as gc
from check_attached import ENTRY, attached, numbers, plan, same
from check_engine import gradients
from groupclip.alone import published
from groupclip.errors import CoverageError, GroupClipError, PrivacyViolation

CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "clip_grad_norm_": lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.01),
    "clip_grad_norm_(inf)": lambda m: nn.utils.clip_grad_norm_(m.parameters(), float("inf")),
    "clip_grad_value_": lambda m: nn.utils.clip_grad_value_(m.parameters(), 0.01),
    "scaled in place": lambda m: [p.grad.mul_(1000.0) for p in m.parameters()],  # type: ignore[union-attr]
    "another tensor": lambda m: setattr(m.get_parameter("2.weight"), "grad", torch.ones(6, 7)),
    "a plain backward pass": lambda m: setattr(m[0].bias, "grad", m[0].bias.grad + 1),  # type: ignore[index]
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_gradient_is_neither_stepped_nor_added_to(change: str) -> None:
    model, optimizer, engine = attached()
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    CHANGES[change](model)
    before = numbers(model)
    for go_on in (optimizer.step, lambda: engine.backward(ENTRY.losses(model, ENTRY.batch(4)))):
        with pytest.raises(
            PrivacyViolation, match=r"isn't what the last backward pass left there.*Hugging Face.*engine\.discard\(\)"
        ):
            go_on()
    assert same(model, before) and engine.ledger is not None and engine.ledger.steps == 0
    engine.discard()
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    optimizer.step()
    assert engine.ledger.steps == 1


#: Torch counts no version of these.
UNSEEN: dict[str, Callable[[Tensor], object]] = {
    "data, scaled": lambda g: g.data.mul_(1000.0),
    "data, a little": lambda g: g.data.mul_(1.01),
    "data, cut": lambda g: g.data.clamp_(-1e-3, 1e-3),
    "data, of one entry": lambda g: g.data.view(-1)[3:4].add_(1.0),
    "data, set": lambda g: setattr(g, "data", g.data * 2),
    "NumPy": lambda g: g.numpy().__imul__(2),
}


@pytest.mark.parametrize("when", ["before the step", "between micro-batches", "in a hook after it landed"])
@pytest.mark.parametrize("change", UNSEEN)
def test_numbers_that_are_changed_behind_torchs_back_are_not_stepped(change: str, when: str) -> None:
    model, optimizer, engine = attached()
    weight = model.get_parameter("2.weight")
    if when == "in a hook after it landed":

        def changes(param: Tensor) -> None:
            UNSEEN[change](param.grad)  # type: ignore[arg-type]

        handle = weight.register_post_accumulate_grad_hook(changes)
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    if when != "in a hook after it landed":
        UNSEEN[change](weight.grad)  # type: ignore[arg-type]
    else:
        handle.remove()
    if when == "between micro-batches":
        engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    before = numbers(model)
    with pytest.raises(PrivacyViolation, match=r"numbers in p\.grad were changed .*engine\.discard\(\)|isn't what the last back"):
        optimizer.step()
    assert same(model, before) and engine.ledger is not None and engine.ledger.steps == 0
    engine.discard()
    for _ in range(2):
        engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    optimizer.step()
    optimizer.zero_grad()
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    optimizer.step()
    assert engine.ledger.steps == 2


@pytest.mark.parametrize("change", [lambda g: g.mul_(2), lambda g: g.data.mul_(2), lambda g: g.numpy().__imul__(2)])
def test_a_hook_that_changes_a_gradient_in_place(change: Callable[[Tensor], object]) -> None:
    """It hands on the very tensor that it was given."""
    model, _, engine = attached()

    def hook(grad: Tensor) -> None:
        change(grad)

    model.get_parameter("2.weight").register_hook(hook)
    with pytest.raises(PrivacyViolation, match=r"a hook on parameter '2\.weight' changed its clipped gradient in place"):
        engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    assert all(p.grad is None for p in model.parameters())


def test_numbers_changed_after_a_pass_of_the_users_are_not_stepped() -> None:
    model = ENTRY.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = gc.attach(model, optimizer, "layer-wise", plan(), loss_reduction="mean")
    for _ in range(2):
        ENTRY.losses(model, ENTRY.batch(4)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    ENTRY.losses(model, ENTRY.batch(4)).mean().backward()
    model.get_parameter("2.weight").grad.data.mul_(2)  # type: ignore[union-attr]
    with pytest.raises(PrivacyViolation, match=r"numbers in p\.grad were changed"):
        optimizer.step()
    engine.detach()


def test_without_a_mechanism_gradients_are_the_users() -> None:
    """Clipping alone guarantees nothing: somebody else adds the noise."""
    model = ENTRY.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = gc.attach(model, optimizer, "layer-wise", None)
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    CHANGES["scaled in place"](model)
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    optimizer.step()


@pytest.mark.parametrize("set_to_none", [False, True])
def test_zero_grad_gives_a_logical_batch_up(set_to_none: bool) -> None:
    model, optimizer, engine = attached()
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    want = gradients(model)
    engine.backward(ENTRY.losses(model, ENTRY.batch(4, seed=2)))
    optimizer.zero_grad(set_to_none)
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    assert all(torch.equal(g, want[n]) for n, g in gradients(model).items())
    optimizer.step()


class Listening:
    """A source of noise that adds none, and keeps what it was given."""

    secure = True

    def __init__(self) -> None:
        self.sums: list[Tensor] = []

    def add_(self, tensor: Tensor, std: float) -> None:
        self.sums.append(tensor.detach().double().flatten().clone())


GIVE_UP: dict[str, Callable[[nn.Module, torch.optim.Optimizer, gc.Engine], object]] = {
    "zero_grad(set_to_none=False)": lambda m, o, e: o.zero_grad(set_to_none=False),
    "zero_grad(set_to_none=True)": lambda m, o, e: o.zero_grad(set_to_none=True),
    "model.zero_grad(False)": lambda m, o, e: m.zero_grad(set_to_none=False),
    "zeroed in place": lambda m, o, e: [p.grad.zero_() for p in m.parameters()],  # type: ignore[union-attr]
    "zeros in its place": lambda m, o, e: [setattr(p, "grad", torch.zeros_like(p.grad)) for p in m.parameters()],  # type: ignore[arg-type]
    "engine.discard": lambda m, o, e: e.discard(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("then", ["an empty batch", "another batch"])
@pytest.mark.parametrize("way", GIVE_UP)
def test_nothing_of_a_batch_that_was_given_up_is_released(way: str, then: str, dtype: torch.dtype) -> None:
    """Half-precision parameters have a sum beside ``p.grad``, which ``zero_grad`` doesn't know of."""

    def released(give_up: bool) -> list[Tensor]:
        noise = Listening()
        model, optimizer, engine = attached(ENTRY.model(dtype), noise=noise)
        if give_up:
            engine.backward(ENTRY.losses(model, ENTRY.batch(6, dtype)))
            GIVE_UP[way](model, optimizer, engine)
        if then == "another batch":
            engine.backward(ENTRY.losses(model, ENTRY.batch(3, dtype, seed=5)))
        optimizer.step()
        return noise.sums

    for got, want in zip(released(True), released(False), strict=True):
        assert torch.equal(got, want)
        assert bool(want.any()) == (then == "another batch")


@pytest.mark.parametrize("where", ["before each", "after each", "discard"])
def test_what_is_given_up_is_no_part_of_a_whole_batch(where: str, caplog: pytest.LogCaptureFixture) -> None:
    """``zero_grad`` between micro-batches leaves the last of them, and which samples these are depends on all others."""
    model, optimizer, engine = attached()
    assert engine.ledger is not None
    data = torch.utils.data.TensorDataset(*ENTRY.batch(engine.ledger.mechanism.dataset_size))
    for step, logical in enumerate(gc.poisson_batches(data, engine.ledger.mechanism, microbatch=2)):
        parts = list(logical)
        for n, part in enumerate(parts):
            if step > 0 and where == "before each":
                optimizer.zero_grad()
            engine.backward(ENTRY.losses(model, tuple(part)))
            if step > 0 and where == "after each":
                optimizer.zero_grad()
            if step > 0 and where == "discard" and n + 1 < len(parts):
                engine.discard()
        optimizer.step()
        optimizer.zero_grad()
        if step > 0 and len(parts) > 1:
            break
    assert engine.ledger.steps_by_sampler["user"] >= 1
    assert caplog.text.count("was not on exactly one whole logical batch") == 1
    with pytest.raises(PrivacyViolation, match="sampling_vouched_by_user=True"):
        engine.epsilon(delta=1e-5)


def test_one_gradient_cleared_and_others_not() -> None:
    """One parameter's sum would be of the last micro-batch, and the others' of all."""
    model, _, engine = attached()
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    next(iter(model.parameters())).grad = None
    with pytest.raises(PrivacyViolation, match=r"p\.grad of '0\.weight' was cleared before the step.*zero_grad\(\) after"):
        engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    engine.discard()
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))


def test_zero_grad_frees_gradients_as_ever() -> None:
    """What the engine notes of them doesn't keep them."""
    model, optimizer, engine = attached()
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    optimizer.step()
    held = [TensorWeakRef(p.grad) for p in model.parameters() if p.grad is not None]
    optimizer.zero_grad()
    garbage.collect()
    assert len(held) == 5 and all(h() is None for h in held)


def test_a_step_twice() -> None:
    """The second would apply the private gradient of the first once more, as if it were a sum."""
    model, optimizer, engine = attached()
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    optimizer.step()
    before = numbers(model)
    with pytest.raises(
        GroupClipError, match=r"still holds the private gradient of the last step: call optimizer\.zero_grad"
    ):
        optimizer.step()
    assert same(model, before) and engine.ledger is not None and engine.ledger.steps == 1
    optimizer.zero_grad()
    optimizer.step()  # an empty batch
    assert engine.ledger.steps == 2


def test_a_gradient_from_before_attach() -> None:
    """It wasn't clipped, and the step would release it."""
    model = ENTRY.model()
    ENTRY.losses(model, ENTRY.batch(4)).sum().backward()
    with pytest.raises(
        PrivacyViolation, match=r"'0\.weight' holds a gradient from before, which wasn't clipped: clear it"
    ):
        attached(model)
    model.zero_grad(set_to_none=False)  # zeros are nothing
    attached(model)


def test_a_frozen_parameter_with_a_gradient_in_the_optimizer() -> None:
    """Optimizers apply whatever gradient they find, whether the parameter is frozen or not."""
    model = ENTRY.model()
    model[0].weight.requires_grad_(False)  # type: ignore[index]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model[0].weight.grad = torch.ones(7, 5)  # type: ignore[index]
    with pytest.raises(CoverageError, match=r"1 frozen parameters with a gradient \(first shape \(7, 5\)\)"):
        gc.attach(model, optimizer, "layer-wise", plan())
    model[0].weight.grad = None  # type: ignore[index]
    engine = gc.attach(model, optimizer, "layer-wise", plan())
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    model[0].weight.grad = torch.ones(7, 5)  # type: ignore[index]
    before = numbers(model)
    with pytest.raises(CoverageError, match="frozen parameters with a gradient"):
        optimizer.step()
    assert same(model, before)


def test_frozen_between_backward_and_step() -> None:
    """Its clipped sum has no noise: it is dropped, and the parameter stays."""
    model, optimizer, engine = attached()
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    model[0].requires_grad_(False)  # type: ignore[index]
    before = numbers(model)
    optimizer.step()
    moved = [not torch.equal(p.detach(), old) for p, old in zip(model.parameters(), before, strict=True)]
    assert moved == [False, False, True, True, True]
    assert model[0].weight.grad is None  # type: ignore[index]


# ------------------------------------------------------------------ hooks of the user


@pytest.mark.parametrize("when", ["before attach", "after attach", "between forward and backward"])
@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_that_changes_a_gradient(kind: str, when: str) -> None:
    """Whenever it came, and on whichever side of ours."""

    def change(value: Tensor) -> Tensor | None:
        if kind == "register_hook":
            return value * 100
        value.grad.mul_(100)  # type: ignore[union-attr]
        return None

    model = ENTRY.model()

    def register() -> None:
        getattr(model.get_parameter("2.weight"), kind)(change)

    if when == "before attach":
        register()
    model, _, engine = attached(model)
    if when == "after attach":
        register()
    losses = ENTRY.losses(model, ENTRY.batch(4))
    if when == "between forward and backward":
        register()
    with pytest.raises((CoverageError, PrivacyViolation), match=r"2\.weight"):
        engine.backward(losses)
    assert all(p.grad is None for p in model.parameters())


def test_a_hook_that_steps_an_optimizer_of_its_own() -> None:
    """The recipe of an optimizer fused into the backward pass: it would step without noise."""
    model, _, engine = attached()
    own = {p: torch.optim.SGD([p], lr=1.0) for p in model.parameters()}

    def step(p: Tensor) -> None:
        own[p].step()  # type: ignore[index]
        own[p].zero_grad()  # type: ignore[index]

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    before = numbers(model)
    with pytest.raises(
        PrivacyViolation, match=r"wasn't attached \(SGD\) is about to move parameter '.*' without noise"
    ):
        engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    assert same(model, before)


def test_a_hook_that_takes_the_gradient_away() -> None:
    model, _, engine = attached()
    taken: list[Tensor | None] = []

    def take(p: Tensor) -> None:
        taken.append(p.grad)
        p.grad = None

    model.get_parameter("2.weight").register_post_accumulate_grad_hook(take)
    with pytest.raises(PrivacyViolation, match=r"a hook changed the clipped gradient of '2\.weight' or took it away"):
        engine.backward(ENTRY.losses(model, ENTRY.batch(4)))


def test_hooks_that_only_look(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """On parameters, on activations and on modules: they run, and change nothing. Modules' backward hooks sleep, which is said."""
    monkeypatch.setattr(published, "_said", set())
    model, _, engine = attached()
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    want = gradients(model)
    engine.discard()
    seen = []
    for p in model.parameters():
        p.register_hook(lambda grad: seen.append("gradient"))
        p.register_post_accumulate_grad_hook(lambda p: seen.append("landed"))
    for layer in list(model.children())[1:]:  # torch warns of backward hooks where no input has a gradient
        layer.register_forward_pre_hook(lambda *_: seen.append("before"))
        layer.register_forward_hook(lambda *_: seen.append("after"))
        layer.register_full_backward_pre_hook(lambda *_: seen.append("backward"))
        layer.register_full_backward_hook(lambda *_: seen.append("backward"))
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    assert all(torch.equal(g, want[n]) for n, g in gradients(model).items())
    counts = {what: seen.count(what) for what in set(seen)}
    assert counts == {"gradient": 5, "landed": 5, "before": 4, "after": 4}
    assert sum("backward hook on a" in record.message for record in caplog.records) == len(
        {type(layer) for layer in list(model.children())[1:]}
    )


# ------------------------------------------------------------------ optimizers of others


def test_another_optimizer_on_private_parameters() -> None:
    model, optimizer, engine = attached()
    other = torch.optim.SGD([model.get_parameter("2.weight")], lr=1.0)
    other.step()  # nothing to apply yet
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    before = numbers(model)
    with pytest.raises(PrivacyViolation, match=r"wasn't attached \(SGD\) is about to move parameter '2\.weight'"):
        other.step()
    assert same(model, before)
    optimizer.step()
    engine.detach()
    other.step()


def test_other_models_train_beside_it() -> None:
    attached()
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()


class Outer(torch.optim.Optimizer):
    """An optimizer around another, as slow weights are."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


def test_an_optimizer_around_another_is_attached_itself() -> None:
    model = ENTRY.model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = Outer(inner)
    engine = gc.attach(model, outer, "layer-wise", plan())
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    before = numbers(model)
    outer.step()
    assert not same(model, before) and engine.ledger is not None and engine.ledger.steps == 1


class FailsOnce(torch.autograd.Function):
    """Out of memory, once, in the middle of a backward pass."""

    left = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        if FailsOnce.left:
            FailsOnce.left -= 1
            raise RuntimeError("out of memory")
        return grad


class Fragile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(FailsOnce.apply(torch.tanh(self.first(x))))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_backward_pass_of_ones_own_that_fails_half_way(reduction: str) -> None:
    """The upper layer's gradients have landed, and come again when it is tried again: samples would count twice."""
    model, x = Fragile(), torch.randn(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = gc.attach(model, optimizer, "layer-wise", plan(), loss_reduction=reduction)  # type: ignore[arg-type]

    def go() -> None:
        losses = model(x).square().sum(1)
        (losses.mean() if reduction == "mean" else losses.sum()).backward()

    FailsOnce.left = 1
    with pytest.raises(RuntimeError, match="out of memory"):
        go()
    for what in (go, optimizer.step):
        with pytest.raises(PrivacyViolation, match=r"failed half-way.*engine\.discard\(\)"):
            what()
    assert engine.ledger is not None and engine.ledger.steps == 0
    engine.discard()
    go()
    go()  # accumulated
    optimizer.step()
    assert engine.ledger.steps == 1
    with pytest.raises(GroupClipError, match="still holds the private gradient"):
        go()
    optimizer.zero_grad()
    go()


# ------------------------------------------------------------------ batches that are left out, repeated or replaced


def loop(habit: str, reduction: str = "none", microbatch: int = 4) -> gc.Engine:
    """A training of 6 steps with a habit of the user's."""
    mechanism = gc.Mechanism(dataset_size=200, expected_batch_size=20, steps=6, noise_multiplier=1.0)
    model, optimizer, engine = attached(mechanism=mechanism, loss_reduction=reduction)
    assert engine.ledger is not None
    data = torch.utils.data.TensorDataset(*ENTRY.batch(mechanism.dataset_size))

    def back(part: list[Tensor]) -> None:
        losses = ENTRY.losses(model, tuple(part))
        engine.backward(losses) if reduction == "none" else losses.mean().backward()

    batches = iter(gc.poisson_batches(data, mechanism, microbatch=microbatch))
    while (batch := next(batches, None)) is not None:
        parts = list(batch)
        assert len(parts) > 1
        if habit == "begun anew" and engine.ledger.steps == 2:
            batches, habit = iter(gc.poisson_batches(data, mechanism, microbatch, start=2)), ""
            continue
        if habit == "again":
            back(parts[0])
            engine.discard()
            parts = list(batch.again(2))
        if habit == "begun anew in smaller parts":
            back(parts[0])
            engine.discard()
            batches = iter(gc.poisson_batches(data, mechanism, 2, start=engine.ledger.steps))
            habit, parts = "", list(next(batches))
        if habit == "one twice":
            parts[1] = parts[0] if len(parts[1]) == len(parts[0]) else parts[1]
        if habit == "over two batches" and engine.ledger.steps == 2:
            habit = ""
            parts += list(next(batches))
        if habit == "reordered":
            parts.reverse()
        for part in parts:
            back(part)
            if habit == "looked at twice":
                ENTRY.losses(model, tuple(part))
        optimizer.step()
        optimizer.zero_grad()
    return engine


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("habit", ["begun anew", "begun anew in smaller parts", "one twice", "over two batches"])
def test_habits_that_choose_samples_are_the_users_own_sampling(
    habit: str, reduction: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = loop(habit, reduction)
    assert engine.ledger is not None and engine.ledger.steps_by_sampler["user"] >= 1
    assert caplog.text.count("was not on exactly one whole logical batch") == 1
    with pytest.raises(PrivacyViolation, match="sampling_vouched_by_user=True"):
        engine.epsilon(delta=1e-5)


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("habit", ["", "again", "reordered", "looked at twice"])
def test_habits_that_choose_nothing_are_claimed(habit: str, reduction: str) -> None:
    engine = loop(habit, reduction)
    assert engine.ledger is not None and engine.ledger.sampling == "groupclip"


def test_a_backward_pass_that_failed_can_be_made_again() -> None:
    """It ran out of memory half-way, in the first micro-batch: what it clipped isn't counted twice."""

    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lower, self.upper, self.fails = nn.Linear(5, 4), nn.Linear(4, 3), False

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.lower(x))
            if self.fails:
                h.register_hook(self.fail)
            return self.upper(h).square().sum(1)

        def fail(self, grad: Tensor) -> None:
            raise RuntimeError("out of memory")

    mechanism = gc.Mechanism(dataset_size=40, expected_batch_size=20, steps=4, noise_multiplier=1.0)
    model, optimizer, engine = attached(Fragile(), mechanism=mechanism)
    data = torch.utils.data.TensorDataset(torch.randn(40, 5))
    for logical in gc.poisson_batches(data, mechanism, microbatch=40):
        for (x,) in logical:
            model.fails = True  # type: ignore[assignment]
            with pytest.raises(RuntimeError, match="out of memory"):
                engine.backward(model(x))
            model.fails = False  # type: ignore[assignment]
            for half in x.split(10):
                engine.backward(model(half))
        optimizer.step()
        optimizer.zero_grad()
    assert engine.ledger is not None and engine.ledger.sampling == "groupclip"
