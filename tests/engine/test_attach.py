"""What attach refuses, with a message that says how to go on, and with nothing changed on model or optimizer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import groupclip as gc
from check_attached import ENTRY, Holder, attached, facts, plan
from groupclip.autograd.tensors import PrivateParameter
from groupclip.errors import CoverageError, GroupClipError, PrivacyViolation, UnsupportedOperation


class Custom(nn.Parameter):
    """Somebody's own parameter class."""


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
        r"thresholds=0\.0: must be positive and finite",
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


class Centres(nn.Module):
    """Its own call sees the whole batch, whatever stands behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(x - x.mean(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def test_a_class_with_a_call_of_its_own_is_refused() -> None:
    model = Centres()
    with pytest.raises(UnsupportedOperation, match=r"Centres has a __call__ of its own, .* attach a module that calls this one"):
        gc.attach(model, None, "layer-wise", None)
    engine = gc.attach(nn.Sequential(model), None, "layer-wise", None)  # inside, it sees one sample
    x = torch.randn(4, 5)
    assert torch.allclose(engine.model(x), model.layer.bias.expand(4, 3))
    engine.detach()
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(5, 3)))  # torch's own
    gc.attach(traced, None, "layer-wise", None).detach()


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


def test_no_mechanism_no_epsilon() -> None:
    model = ENTRY.model()
    engine = gc.attach(model, None, "layer-wise", None)
    for ask in (lambda: engine.epsilon(delta=1e-5), lambda: engine.statement(delta=1e-5)):
        with pytest.raises(
            PrivacyViolation, match=r"clips without noise.*guarantees nothing: attach with a calibrated Mechanism"
        ):
            ask()
    assert engine.noise_std == 0.0


class Wrapper(torch.optim.Optimizer):
    """As accelerate's: an optimizer by class, whose steps are another's."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:  # pyright: ignore[reportMissingSuperCall]
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups


def test_a_wrapped_optimizer_is_refused_with_the_order_to_keep() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mechanism = gc.Mechanism(dataset_size=40, expected_batch_size=8, steps=6, noise_multiplier=1.0)
    with pytest.raises(
        TypeError, match=r"optimizer is Wrapper, .* accelerator\.prepare\(model, optimizer\) after groupclip\.attach"
    ):
        gc.attach(model, Wrapper(optimizer), "all-layer", mechanism)
    assert all(type(p) is torch.nn.Parameter for p in model.parameters())
    engine = gc.attach(model, optimizer, "all-layer", mechanism)
    wrapped = Wrapper(optimizer)  # afterwards it may be wrapped
    engine.backward(model(torch.randn(4, 3)).square().sum(1))
    wrapped.optimizer.step()
    assert engine.ledger is not None
    assert engine.ledger.steps == 1
    engine.detach()
