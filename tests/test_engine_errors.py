"""What the engine refuses: each with a message that says what was found and how to go on, and nothing half-done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import groupclip as gc
import oracle
from check_engine import ENTRIES, clipped_by_engine, faults, gradients, grouped, members
from groupclip.errors import BudgetExceeded, CoverageError, GroupClipError, PrivacyViolation, UnsupportedOperation
from groupclip.private import PrivateParameter

ENTRY = ENTRIES["mlp"]


def plan(steps: int = 5, sigma: float | None = 1.0) -> gc.Mechanism:
    return gc.Mechanism(dataset_size=100, expected_batch_size=8, steps=steps, noise_multiplier=sigma)


def attached(
    model: nn.Module | None = None, style: str = "layer-wise", mechanism: gc.Mechanism | None = None, **options: Any
) -> tuple[nn.Module, torch.optim.Optimizer, gc.Engine]:
    model = ENTRY.model() if model is None else model
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    return model, optimizer, gc.attach(model, optimizer, style, mechanism or plan(), **options)


def numbers(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(model: nn.Module, before: list[Tensor]) -> bool:
    return all(torch.equal(p.detach(), q) for p, q in zip(model.parameters(), before, strict=True))


def facts(model: nn.Module) -> Any:
    """All of a model that attach or a failure of it may change."""
    return (
        [
            (n, type(p), p.requires_grad, dict(p.__dict__), p.grad, p._backward_hooks)
            for n, p in model.named_parameters()
        ],
        [
            (n, type(m), list(m.__dict__), len(m._forward_pre_hooks), len(m._forward_hooks))
            for n, m in model.named_modules()
        ],
        {n: t.clone() for n, t in model.state_dict().items()}.keys(),
    )


# ------------------------------------------------------------------ attach


class Custom(nn.Parameter):
    """Somebody's own parameter class."""


class Holder(nn.Module):
    def __init__(self, parameter: nn.Parameter) -> None:
        super().__init__()
        self.weight = parameter


class HoldsStatistics(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).square().mean((1, 2))


REFUSED: dict[str, tuple[Callable[[nn.Module, torch.optim.Optimizer], object], type[Exception], str]] = {
    "unknown style": (
        lambda m, o: gc.attach(m, o, "layerwise", plan()),
        ValueError,
        r"unknown clipping style 'layerwise'\. Did you mean 'layer-wise'\?",
    ),
    "unknown clip": (
        lambda m, o: gc.attach(m, o, "layer-wise", plan(), clip="adabi"),
        ValueError,
        r"clip='adabi' is unknown; choose one of abadi, automatic",
    ),
    "thresholds of another number": (
        lambda m, o: gc.attach(m, o, "layer-wise", plan(), thresholds=[1.0, 1.0]),
        ValueError,
        r"thresholds has 2 numbers for 3 groups: give one a group",
    ),
    "threshold of an unknown group": (
        lambda m, o: gc.attach(m, o, "layer-wise", plan(), thresholds={"0": 1.0, "2": 1.0, "head": 1.0}),
        ValueError,
        r"missing: \['4'\], unknown: \['head'\]; the groups are \['0', '2', '4'\]",
    ),
    "threshold zero": (
        lambda m, o: gc.attach(m, o, "layer-wise", plan(), thresholds=0.0),
        ValueError,
        r"threshold of group '0' is 0\.0: must be positive and finite",
    ),
    "unknown loss reduction": (
        lambda m, o: gc.attach(m, o, "layer-wise", plan(), loss_reduction="avg"),  # pyright: ignore
        ValueError,
        r"loss_reduction='avg' must be 'none', 'mean' or 'sum'",
    ),
    "no noise multiplier": (
        lambda m, o: gc.attach(m, o, "layer-wise", plan(sigma=None)),
        ValueError,
        r"no noise_multiplier yet: use mechanism\.calibrate\(epsilon=",
    ),
    "something else for a mechanism": (
        lambda m, o: gc.attach(m, o, "layer-wise", 1.0),  # pyright: ignore
        TypeError,
        r"mechanism is float; it must be a groupclip\.Mechanism or None",
    ),
    "a mechanism without an optimizer": (
        lambda m, o: gc.attach(m, None, "layer-wise", plan()),
        ValueError,
        r"noise is added when the optimizer steps; pass the optimizer, or mechanism=None",
    ),
    "parameter in no group": (
        lambda m, o: gc.attach(m, o, gc.Partition("mapping", (("a", ("0.weight", "0.bias")),), (42,)), plan()),
        CoverageError,
        r"trainable parameter '2\.weight' is in no group; trainable parameter '4\.weight' is in no group",
    ),
    "mapping that misses a parameter": (
        lambda m, o: gc.attach(m, o, {"0.*": "a", "2.*": "a", "4.weight": "b"}, plan()),
        ValueError,
        r"parameter '4\.bias' is in no group: no key of the mapping matches; add one",
    ),
    "optimizer of another model": (
        lambda m, o: gc.attach(m, torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1), "layer-wise", plan()),
        CoverageError,
        r"the optimizer holds 2 trainable parameters that are not the model's \(first shape \(2, 3\)\)",
    ),
    "optimizer that holds more": (
        lambda m, o: gc.attach(
            m, torch.optim.SGD([*m.parameters(), nn.Parameter(torch.zeros(7))], lr=0.1), "layer-wise", plan()
        ),
        CoverageError,
        r"holds 1 trainable parameters that are not the model's \(first shape \(7,\)\): they would be updated without",
    ),
    "optimizer that lacks some": (
        lambda m, o: gc.attach(m, torch.optim.SGD([m.get_parameter("0.weight")], lr=0.1), "layer-wise", plan()),
        CoverageError,
        r"trainable parameters are not in the optimizer: 0\.bias, 2\.weight, 4\.weight, 4\.bias\. They would cost noise",
    ),
    "LBFGS": (
        lambda m, o: gc.attach(m, torch.optim.LBFGS(m.parameters()), "layer-wise", plan()),
        PrivacyViolation,
        r"LBFGS evaluates the gradient several times in a step, each without noise: use another optimizer",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_attach_refuses_and_changes_nothing(case: str) -> None:
    refuse, error, message = REFUSED[case]
    model = ENTRY.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = facts(model)
    with pytest.raises(error, match=message):
        refuse(model, optimizer)
    assert facts(model) == before
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    gc.attach(model, optimizer, "layer-wise", plan()).detach()


def test_attach_twice() -> None:
    model, optimizer, engine = attached()
    with pytest.raises(
        GroupClipError, match=r"'0\.weight' is attached already: call detach\(\) on the engine that holds it"
    ):
        gc.attach(model, optimizer, "all-layer", plan())
    engine.backward(ENTRY.losses(model, ENTRY.batch(3)))  # the first engine goes on as if nothing had been
    assert len(engine.unsafe_norms()) == 3


def test_attach_refuses_a_shared_parameter_before_anything_is_changed() -> None:
    first, _, _ = attached()
    second = nn.Sequential(nn.Linear(2, 5), first[0])  # type: ignore[index]
    with pytest.raises(GroupClipError, match=r"parameter '1\.weight' is attached already"):
        gc.attach(second, torch.optim.SGD(second.parameters(), lr=0.1), "layer-wise", plan())
    assert [type(p) for p in second.parameters()] == [nn.Parameter, nn.Parameter, PrivateParameter, PrivateParameter]


def test_attach_detach_attach() -> None:
    model, optimizer, engine = attached()
    engine.detach()
    engine.detach()  # twice is no error
    with pytest.raises(GroupClipError, match=r"the engine is detached: call groupclip\.attach again"):
        engine.backward(ENTRY.losses(model, ENTRY.batch(3)))
    engine = gc.attach(model, optimizer, "all-layer", plan())
    engine.backward(ENTRY.losses(model, ENTRY.batch(3)))
    optimizer.step()
    assert engine.ledger is not None and engine.ledger.steps == 1


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        (Custom(torch.zeros(3)), "'weight' is a Custom, a subclass of Parameter"),
        (
            nn.Parameter(torch.zeros(3, dtype=torch.complex64)),
            "'weight' has dtype torch.complex64: only real floating point",
        ),
        (nn.Parameter(torch.zeros(0, 3)), "'weight' has no elements"),
    ],
)
def test_attach_refuses_parameters_it_cannot_follow(parameter: nn.Parameter, message: str) -> None:
    model = Holder(parameter)
    with pytest.raises(CoverageError, match=message):
        gc.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "all-layer", plan())
    assert type(model.weight) is type(parameter)


# ------------------------------------------------------------------ batch statistics


def test_batch_norm_in_training_mode_is_refused_at_attach() -> None:
    model = HoldsStatistics()
    before = facts(model)
    with pytest.raises(PrivacyViolation, match=r"'norm' is BatchNorm1d in training mode.*replace it by GroupNorm"):
        attached(model)
    assert facts(model) == before


def test_batch_norm_without_running_statistics_is_refused_in_eval_mode_too() -> None:
    with pytest.raises(PrivacyViolation, match="batch normalisation with the statistics of the batch mixes samples"):
        attached(HoldsStatistics(track_running_stats=False).eval())


def test_batch_norm_is_refused_when_model_train_is_called() -> None:
    model, _, engine = attached(HoldsStatistics().eval())
    x = torch.randn(4, 2, 5)
    engine.backward(model(x))
    running = model.norm.running_mean.clone()  # type: ignore[union-attr]
    model.train()
    with pytest.raises(PrivacyViolation, match="BatchNorm1d: batch normalisation with the statistics of the batch"):
        model(x)
    assert torch.equal(model.norm.running_mean, running), "the statistics took the batch in"  # type: ignore[union-attr]


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_with_fixed_statistics_is_exact(affine: bool) -> None:
    model = HoldsStatistics(affine=affine).eval().double()
    model.norm.running_mean.normal_(), model.norm.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
    batch = (torch.randn(4, 2, 5, dtype=torch.float64),)
    groups = gc.partition(model, "layer-wise")
    thresholds = dict.fromkeys(groups, 0.3)
    want = oracle.clipped_sum(model, lambda m, b: m(*b), batch, members(groups), "abadi", thresholds)
    got = clipped_by_engine(model, lambda m, b: m(*b), batch, groups, "abadi", thresholds)
    assert faults(got, want, groups, thresholds, 1e-10) == []


@pytest.mark.parametrize("affine", [True, False])
def test_instance_norm_that_tracks_statistics_is_refused(affine: bool) -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 1), nn.InstanceNorm1d(3, affine=affine, track_running_stats=True))
    with pytest.raises(PrivacyViolation, match=r"InstanceNorm.*track_running_stats=True.*statistics of the batch"):
        _, _, engine = attached(model)
        engine.backward(model(torch.randn(4, 2, 5)).square().mean((1, 2)))


# ------------------------------------------------------------------ losses


def mlp_out(model: nn.Module, size: int = 4) -> Tensor:
    return model(ENTRY.batch(size)[0])


WRONG_LOSSES: dict[str, tuple[Callable[[nn.Module], Any], type[Exception], str]] = {
    "scalar": (
        lambda m: F.cross_entropy(mlp_out(m), torch.zeros(4, dtype=torch.long)),
        ValueError,
        r"losses has shape \(\), but .* one loss per sample, shape \[B\]: pass reduction='none' to the loss function",
    ),
    "[B, 1]": (
        lambda m: mlp_out(m)[:, :1].square(),
        ValueError,
        r"losses has shape \(4, 1\), .*: use losses\.squeeze\(1\)",
    ),
    "[B, T]": (
        lambda m: mlp_out(m).square(),
        ValueError,
        r"losses has shape \(4, 3\), .*: reduce each sample's entries, e\.g\. losses\.flatten\(1\)\.mean\(1\)",
    ),
    "[B, 1, T]": (lambda m: mlp_out(m)[:, None].square(), ValueError, r"losses has shape \(4, 1, 3\), .*flatten\(1\)"),
    "too few": (
        lambda m: mlp_out(m).square().sum(1)[:3],
        ValueError,
        r"losses has 3 entries, but the model was last called with 4 samples: give one loss per sample",
    ),
    "one of all": (
        lambda m: mlp_out(m).square().mean().unsqueeze(0),
        ValueError,
        r"losses has 1 entries, but the model was last called with 4 samples",
    ),
    "without grad": (
        lambda m: mlp_out(m).square().sum(1).detach(),
        ValueError,
        r"losses don't require grad: they were computed under no_grad, or from no trainable parameter",
    ),
    "a list": (
        lambda m: list(mlp_out(m).square().sum(1)),
        TypeError,
        r"losses is list; engine\.backward takes a tensor \[B\]",
    ),
}


@pytest.mark.parametrize("case", WRONG_LOSSES)
def test_losses_that_are_not_one_a_sample(case: str) -> None:
    make, error, message = WRONG_LOSSES[case]
    model, optimizer, engine = attached()
    with pytest.raises(error, match=message):
        engine.backward(make(model))
    assert all(p.grad is None for p in model.parameters())
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))  # it was an argument: nothing is broken
    optimizer.step()


@pytest.mark.parametrize(
    "reduced", [lambda losses: losses.mean(), lambda losses: losses.sum(), lambda losses: losses[0]]
)
def test_a_reduced_loss_that_was_not_declared(reduced: Callable[[Tensor], Tensor]) -> None:
    model, _, engine = attached()
    with pytest.raises(
        PrivacyViolation, match=r"backward was called on a reduced loss.*loss_reduction='mean' or 'sum'"
    ):
        reduced(ENTRY.losses(model, ENTRY.batch(4))).backward()
    assert all(p.grad is None for p in model.parameters())
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", ["mlp", "cnn-groupnorm", "vit", "gpt", "gpt-tied", "reused", "siamese"])
def test_a_declared_reduction_is_exact(name: str, reduction: str) -> None:
    """The user's own loss.backward() then gives what engine.backward(losses) gives; micro-batches add up too."""
    entry = ENTRIES[name]
    model = entry.model(torch.float64)
    groups = grouped(model, "layer-wise")
    want = clipped_by_engine(model, entry.losses, entry.batch(6, torch.float64), groups, "abadi", 0.5)
    engine = gc.attach(model, None, groups, None, clip="abadi", thresholds=0.5, loss_reduction=reduction)  # pyright: ignore
    for part in (slice(0, 4), slice(4, 6)):
        losses = entry.losses(model, tuple(t[part] for t in entry.batch(6, torch.float64)))
        (losses.mean() if reduction == "mean" else losses.sum()).backward()
    for n, g in gradients(model).items():
        torch.testing.assert_close(g, want.sums[n], rtol=0, atol=1e-10)
    assert {g: len(n) for g, n in engine.unsafe_norms().items()} == dict.fromkeys(groups, 2)


def test_losses_of_another_forward_pass() -> None:
    model, _, engine = attached()
    first = ENTRY.losses(model, ENTRY.batch(4))
    ENTRY.losses(model, ENTRY.batch(2))
    with pytest.raises(ValueError, match="losses has 4 entries, but the model was last called with 2 samples"):
        engine.backward(first)


def test_losses_in_which_no_parameter_took_part() -> None:
    model, _, engine = attached()
    model(ENTRY.batch(4)[0])
    other = nn.Linear(5, 1)
    with pytest.raises(CoverageError, match="no private parameter took part in these losses"):
        engine.backward(other(ENTRY.batch(4)[0]).squeeze(1))


def test_the_loss_of_a_model_before_it_was_called() -> None:
    model, _, _ = attached()
    x = torch.randn(4, 5)
    with pytest.raises(PrivacyViolation, match=r"outside a call of the model.*call the model itself"):
        model[0](x)  # type: ignore[index]


def test_a_model_without_a_batch() -> None:
    model, _, _ = attached(Holder(nn.Parameter(torch.ones(3))))
    model.forward = lambda scale: model.weight * scale  # type: ignore[method-assign, operator]
    for scale in (2.0, torch.tensor(2.0)):
        with pytest.raises(PrivacyViolation, match="without any tensor that has a batch dimension"):
            model(scale)


# ------------------------------------------------------------------ two backwards


@pytest.mark.parametrize("name", ["mlp", "vit", "gpt-tied"])
@pytest.mark.parametrize("again", ["the same losses", "another loss of the same pass"])
def test_two_backwards_through_one_forward(again: str, name: str) -> None:
    """Each sample would be clipped and added twice."""
    entry = ENTRIES[name]
    model, optimizer, engine = attached(entry.model())
    losses = entry.losses(model, entry.batch(4))
    first, second = (losses, losses) if again == "the same losses" else (losses.clone(), losses * 2)
    engine.backward(first)
    once = gradients(model)
    with pytest.raises(
        GroupClipError, match=r"second backward.*call engine\.backward once, or run the forward pass again"
    ):
        engine.backward(second)
    for n, g in gradients(model).items():
        assert torch.equal(g, once[n]), "the second pass added something"
    with pytest.raises(PrivacyViolation, match=r"failed half-way.*engine\.discard\(\)"):
        optimizer.step()


def test_two_backwards_with_the_graph_retained() -> None:
    model, _, _ = attached(loss_reduction="sum", mechanism=plan())
    loss = ENTRY.losses(model, ENTRY.batch(4)).sum()
    loss.backward(retain_graph=True)
    once = gradients(model)
    with pytest.raises(GroupClipError, match="a second backward went through the forward pass of group"):
        loss.backward()
    for n, g in gradients(model).items():
        assert torch.equal(g, once[n])


# ------------------------------------------------------------------ steps


@pytest.mark.parametrize("call", [lambda o, c: o.step(c), lambda o, c: o.step(closure=c)])
def test_step_with_a_closure(call: Callable[[torch.optim.Optimizer, Callable[[], float]], None]) -> None:
    model, optimizer, engine = attached()
    before = numbers(model)
    ran = []

    def closure() -> float:
        ran.append(1)
        return 0.0

    with pytest.raises(
        PrivacyViolation, match=r"with a closure: .* without noise\. Call engine\.backward first and then"
    ):
        call(optimizer, closure)
    assert not ran and same(model, before)
    assert engine.ledger is not None and engine.ledger.steps == 0
    optimizer.step(None)
    assert engine.ledger.steps == 1


def test_steps_past_the_plan() -> None:
    model, optimizer, engine = attached(mechanism=plan(steps=2))
    for _ in range(2):
        engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
        optimizer.step()
        optimizer.zero_grad()
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    before, clipped = numbers(model), gradients(model)
    with pytest.raises(BudgetExceeded, match=r"all 2 planned steps are released.*plan more steps in a new Mechanism"):
        optimizer.step()
    assert same(model, before)
    assert all(torch.equal(g, clipped[n]) for n, g in gradients(model).items()), "noise was drawn for a step too many"
    assert engine.ledger is not None and engine.ledger.steps == 2


def test_a_parameter_group_added_after_attach() -> None:
    model, optimizer, engine = attached()
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(7))]})
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    with pytest.raises(CoverageError, match=r"not the model's \(first shape \(7,\)\)"):
        optimizer.step()
    assert engine.ledger is not None and engine.ledger.steps == 0


def test_a_parameter_that_became_trainable_after_attach() -> None:
    model = ENTRY.model()
    model[0].requires_grad_(False)  # type: ignore[index]
    model, _, _ = attached(model)
    model[0].requires_grad_(True)  # type: ignore[index]
    with pytest.raises(
        CoverageError, match=r"'0\.weight' is trainable but in no group: it was unfrozen, added or replaced"
    ):
        ENTRY.losses(model, ENTRY.batch(4))


def test_a_layer_added_after_attach() -> None:
    model, _, _ = attached()
    model.append(nn.Linear(3, 3))  # type: ignore[operator]
    with pytest.raises(CoverageError, match=r"'5\.weight' is trainable but in no group"):
        ENTRY.losses(model, ENTRY.batch(4))


def test_zero_grad_forgotten() -> None:
    model, optimizer, engine = attached()
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    optimizer.step()
    with pytest.raises(
        GroupClipError, match=r"still holds the private gradient of the last step: call optimizer\.zero_grad\(\)"
    ):
        engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    for set_to_none in (False, True):
        optimizer.zero_grad(set_to_none)
        engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
        optimizer.step()
    assert engine.ledger is not None and engine.ledger.steps == 3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_spoilt_after_the_backward_pass(bad: float) -> None:
    model, optimizer, engine = attached()
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    model.get_parameter("2.weight").grad[0, 0] = bad  # type: ignore[index]
    before = numbers(model)
    with pytest.raises(PrivacyViolation, match=r"a summed gradient isn't finite.*engine\.discard\(\)"):
        optimizer.step()
    assert same(model, before)
    engine.discard()
    optimizer.step()
    assert all(torch.isfinite(p).all() for p in model.parameters())


# ------------------------------------------------------------------ a backward pass that fails half-way


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise RuntimeError("out of luck")


class FailsHalfWay(nn.Module):
    """Its upper layer gets its gradient, its lower one doesn't, when ``fails`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.lower, self.upper, self.fails = nn.Linear(5, 4), nn.Linear(4, 3), True

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.lower(x))
        return self.upper(Raises.apply(x) if self.fails else x).square().sum(1)  # pyright: ignore


def test_a_first_micro_batch_that_fails_leaves_no_gradient() -> None:
    model = FailsHalfWay()
    model, optimizer, engine = attached(model)
    x = torch.randn(4, 5)
    with pytest.raises(RuntimeError, match="out of luck"):
        engine.backward(model(x))
    assert all(p.grad is None for p in model.parameters())
    model.fails = False  # type: ignore[assignment]
    engine.backward(model(x))
    got = gradients(model)
    optimizer.step()
    fresh = FailsHalfWay()
    fresh.fails = False
    fresh.load_state_dict(model.state_dict())
    assert all(torch.isfinite(g).all() and g.abs().sum() > 0 for g in got.values())
    assert engine.ledger is not None and engine.ledger.steps == 1


def test_a_later_micro_batch_that_fails_breaks_the_logical_batch() -> None:
    """A half of its samples' gradients is in p.grad: the step must not be made."""
    model = FailsHalfWay()
    model, optimizer, engine = attached(model)
    x = torch.randn(4, 5)
    model.fails = False  # type: ignore[assignment]
    engine.backward(model(x))
    whole = gradients(model)
    model.fails = True  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="out of luck"):
        engine.backward(model(x))
    model.fails = False  # type: ignore[assignment]
    with pytest.raises(
        PrivacyViolation, match=r"an earlier backward pass of this logical batch failed half-way.*discard"
    ):
        engine.backward(model(x))
    with pytest.raises(PrivacyViolation, match=r"failed half-way.*call engine\.discard\(\)"):
        optimizer.step()
    engine.discard()
    assert all(p.grad is None for p in model.parameters())
    engine.backward(model(x))
    for n, g in gradients(model).items():
        torch.testing.assert_close(g, whole[n], rtol=0, atol=0)
    optimizer.step()


# ------------------------------------------------------------------ operations that can't be followed


class Hidden(torch.autograd.Function):
    """An operation whose backward returns a weight gradient of its own, unclipped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), x.t() @ grad


class UsesHidden(nn.Module):
    def __init__(self, derived: bool) -> None:
        super().__init__()
        self.first, self.weight, self.derived = nn.Linear(5, 4), nn.Parameter(torch.ones(4, 3)), derived

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight * 2 if self.derived else self.weight
        return Hidden.apply(torch.tanh(self.first(x)), weight).square().sum(1)  # pyright: ignore


@pytest.mark.parametrize("derived", [False, True])
def test_a_custom_function_on_a_parameter(derived: bool) -> None:
    """Its gradient isn't clipped, so it must not arrive."""
    model, _, engine = attached(UsesHidden(derived))
    with pytest.raises(
        (CoverageError, UnsupportedOperation), match=r"groupclip can't see \(a custom autograd\.Function"
    ):
        engine.backward(model(torch.randn(4, 5)))
    assert all(p.grad is None for p in model.parameters())


class Embeds(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 3, **options)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids).square().mean((1, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_norm": 1.0}, r"embedding with max_norm rewrites rows .* Leave max_norm out"),
        ({"scale_grad_by_freq": True}, r"scale_grad_by_freq divides by how often .* Leave scale_grad_by_freq out"),
    ],
)
def test_embeddings_that_mix_samples(options: dict[str, Any], message: str) -> None:
    model = Embeds(**options)
    table = model.table.weight.detach().clone()
    model, _, engine = attached(model)
    with pytest.raises(UnsupportedOperation, match=message):
        engine.backward(model(torch.randint(7, (4, 5))))
    assert torch.equal(model.table.weight.detach(), table)  # type: ignore[union-attr, arg-type]


class InPlace(nn.Module):
    """Changes its own parameters, or a derived tensor, in the forward pass."""

    def __init__(self, change: Callable[[Tensor, nn.Parameter], Tensor]) -> None:
        super().__init__()
        self.weight, self.change = nn.Parameter(torch.ones(5)), change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(x, self.weight).square().sum(1)


def assign(x: Tensor, weight: Tensor) -> Tensor:
    y = torch.zeros(len(x), 2, 5)
    y[:, 0] = weight
    return y.sum(1) * x


@pytest.mark.parametrize(
    "change",
    [lambda x, w: (w * 2).add_(1) * x, lambda x, w: (w + 1).mul_(w) * x, assign],
    ids=["add_ on a derived", "mul_ on a derived", "setitem"],
)
def test_in_place_changes_of_what_depends_on_parameters(change: Callable[[Tensor, Tensor], Tensor]) -> None:
    model, _, _ = attached(InPlace(change))
    with pytest.raises(
        UnsupportedOperation, match=r"changes a tensor in place that depends on weight; write it out of place"
    ):
        model(torch.randn(4, 5))


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_a_gradient_penalty_is_refused(reduction: Any) -> None:
    """It needs the second derivative, which no rule has: refused, not wrong."""
    model, _, engine = attached(loss_reduction=reduction)
    x = ENTRY.batch(4)[0].requires_grad_()
    with pytest.raises(
        (GroupClipError, RuntimeError), match=r"reduced loss|differentiate twice|doesn't have|used outside"
    ):
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        engine.backward(slope.square().sum(1))
    assert all(p.grad is None for p in model.parameters())


# ------------------------------------------------------------------ checkpoints


class Checkpointed(nn.Module):
    """Two segments; ``shared``: the second uses the layer of the first."""

    def __init__(self, reentrant: bool | None, shared: bool = False) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.head = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.reentrant, self.shared = reentrant, shared

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in (self.a, self.a if self.shared else self.b):
            x = self.segment(layer, x)
        return self.head(x).square().sum(1)

    def segment(self, layer: nn.Module, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return torch.tanh(layer(x))
        return checkpoint(lambda x: torch.tanh(layer(x)), x, use_reentrant=self.reentrant)  # pyright: ignore


def checkpointed_faults(reentrant: bool, style: str, shared: bool = False) -> list[str]:
    torch.manual_seed(0)
    plain, model = Checkpointed(None, shared).double(), Checkpointed(reentrant, shared).double()
    model.load_state_dict(plain.state_dict())
    if shared:
        for m in (plain, model):
            m.b.requires_grad_(False)
    batch, groups = (torch.randn(4, 5, dtype=torch.float64),), gc.partition(model, style)
    thresholds = dict.fromkeys(groups, 0.2)
    want = oracle.clipped_sum(plain, lambda m, b: m(*b), batch, members(groups), "abadi", thresholds)
    got = clipped_by_engine(model, lambda m, b: m(*b), batch, groups, "abadi", thresholds)
    return faults(got, want, groups, thresholds, 1e-10)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("style", ["all-layer", "layer-wise", "param-wise"])
def test_checkpoints_without_reentry_are_exact(style: str, shared: bool) -> None:
    assert checkpointed_faults(False, style, shared) == []


@pytest.mark.parametrize("style", ["layer-wise", "param-wise"])
def test_reentrant_checkpoints_are_exact_where_groups_lie_in_segments(style: str) -> None:
    assert checkpointed_faults(True, style) == []


@pytest.mark.parametrize(("style", "shared"), [("all-layer", False), ("layer-wise", True)])
def test_reentrant_checkpoints_that_a_group_spans_are_refused(style: str, shared: bool) -> None:
    with pytest.raises(PrivacyViolation, match="use_reentrant=False"):
        checkpointed_faults(True, style, shared)


# ------------------------------------------------------------------ the engine without a mechanism promises nothing


def test_no_mechanism_no_epsilon() -> None:
    model = ENTRY.model()
    engine = gc.attach(model, None, "layer-wise", None)
    for ask in (lambda: engine.epsilon(delta=1e-5), lambda: engine.statement(delta=1e-5)):
        with pytest.raises(
            PrivacyViolation, match=r"clips without noise.*guarantees nothing: attach with a calibrated Mechanism"
        ):
            ask()
    assert engine.noise_std == 0.0


@pytest.fixture(autouse=True)
def no_hook_is_left_behind() -> Iterator[None]:
    """Global hooks would outlive the test."""
    yield
    assert not nn.modules.module._global_forward_pre_hooks
