"""Attached, the model looks as before; detached, it is as before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import groupclip as gc
from check_attached import ENTRY, attached, plan, train
from check_engine import CORE, ENTRIES, clipped_by_engine, faults, gradients, grouped
from groupclip.autograd.tensors import PrivateTensor
from oracle import clipped_sum


@pytest.mark.parametrize("name", CORE)
def test_attached_the_model_has_the_same_state_and_output(name: str) -> None:
    entry = ENTRIES[name]
    model = entry.model()
    plain, want = model.state_dict(), entry.losses(model, entry.batch(3))
    engine = gc.attach(model, None, "layer-wise", None)
    got = model.state_dict()
    assert list(got) == list(plain)
    assert all(type(value) is Tensor and torch.equal(value, plain[key]) for key, value in got.items())
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in entry.model().named_parameters()]
    assert isinstance(next(model.parameters()), nn.Parameter)
    losses = entry.losses(model, entry.batch(3))
    assert type(losses) is Tensor and torch.allclose(losses, want, atol=1e-6)
    engine.backward(losses)
    assert all(type(p.grad) is Tensor and not p.grad.requires_grad for p in model.parameters() if p.grad is not None)
    with torch.no_grad():
        assert torch.allclose(entry.losses(model, entry.batch(3)), want, atol=1e-6)


def test_the_inputs_are_the_users_own_tensors_again() -> None:
    model, _, engine = attached()
    x, labels = ENTRY.batch(4)
    losses = ENTRY.losses(model, (x, labels))
    assert type(x) is Tensor and type(labels) is Tensor and not x.requires_grad
    engine.backward(losses)
    assert type(x) is Tensor and x.grad is None


def test_inputs_of_a_model_that_raises_are_the_users_own_again() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("no luck")

    model, _, _ = attached(Fails())
    x = torch.randn(4, 5)
    with pytest.raises(KeyError, match="no luck"):
        model(x)
    assert type(x) is Tensor


def test_the_gradient_of_an_input_is_untouched() -> None:
    """An adversarial example, a prompt: it may have a gradient, and it is that of the sum of losses."""
    model, _, engine = attached()
    x, labels = ENTRY.batch(4)
    (want,) = torch.autograd.grad(ENTRY.losses(ENTRY.model(), (x.requires_grad_(), labels)).sum(), x)
    engine.backward(ENTRY.losses(model, (x, labels)))
    torch.testing.assert_close(x.grad, want)


@pytest.mark.parametrize("seed", [0, 1])
def test_random_numbers_are_drawn_as_without_an_engine(seed: int) -> None:
    """Dropout drops the same, also in the first pass; and what comes after the pass is the same too."""
    model = nn.Sequential(nn.Linear(5, 50), nn.Dropout(0.5), nn.Linear(50, 3))
    x = torch.randn(4, 5)
    torch.manual_seed(seed)
    want, after = model(x), torch.rand(3)
    engine = gc.attach(model, None, "layer-wise", None)
    torch.manual_seed(seed)
    got = model(x)
    assert torch.equal(got, want) and torch.equal(torch.rand(3), after)
    engine.detach()


def test_buffers_are_written_once_a_pass() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.python = nn.Linear(5, 3), 0
            self.register_buffer("passes", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.passes += 1
            self.python += 1
            return self.layer(x).square().sum(1)

    model, _, engine = attached(Counts())
    for passes in (1, 2):
        engine.backward(model(torch.randn(4, 5)))
        assert (model.passes.item(), model.python) == (passes, passes)  # type: ignore[operator, union-attr]


def test_no_private_tensor_comes_out_of_the_model() -> None:
    """Outputs are plain tensors even where parameters were used without the batch."""
    for name, entry in ENTRIES.items():
        model = entry.model(torch.float64)
        engine = gc.attach(model, None, "layer-wise", None)
        assert not isinstance(entry.losses(model, entry.batch(3, torch.float64)), PrivateTensor), name
        engine.detach()


def test_a_loss_with_a_regulariser_on_the_parameters() -> None:
    """Computed outside the model, without the batch: each sample's loss has it, and so has its gradient."""
    model, batch = ENTRY.model(torch.float64), ENTRY.batch(4, torch.float64)

    def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return ENTRY.losses(model, batch) + 0.1 * model.get_parameter("2.weight").square().sum()

    groups = grouped(model, "layer-wise")
    thresholds = dict.fromkeys(groups, 0.5)
    want = clipped_sum(model, losses, batch, {g: groups[g] for g in groups}, "abadi", thresholds)
    got = clipped_by_engine(model, losses, batch, groups, "abadi", thresholds)
    assert faults(got, want, groups, thresholds, 1e-10) == []


def facts(model: nn.Module, optimizer: torch.optim.Optimizer) -> Mapping[str, Any]:
    hooks = [name for name in vars(model) if "hooks" in name]
    return {
        "parameters": [(n, id(p), type(p), p.requires_grad, dict(p.__dict__)) for n, p in model.named_parameters()],
        "gradients": [(p.grad, p._backward_hooks) for p in model.parameters()],
        "modules": [(n, type(m), list(m.__dict__)) for n, m in model.named_modules()],
        "hooks": [[list(getattr(m, name)) for name in hooks] for m in model.modules()],
        "state": list(model.state_dict()),
        "optimizer": [type(optimizer), sorted(optimizer.__dict__), list(optimizer.state_dict()["param_groups"])],
        "optimizer hooks": [list(optimizer._optimizer_step_pre_hooks), list(optimizer._optimizer_step_post_hooks)],
        "groups": [[id(p) for p in group["params"]] for group in optimizer.param_groups],
    }


@pytest.mark.parametrize("used", ["never", "forward", "backward", "step"])
@pytest.mark.parametrize("name", [*CORE, "weight-norm", "frozen-halves"])
def test_detach_leaves_everything_as_it_was(name: str, used: str) -> None:
    entry = ENTRIES[name]
    model = entry.model()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    before = facts(model, optimizer)
    engine = gc.attach(model, optimizer, "layer-wise", plan())
    if used != "never":
        losses = entry.losses(model, entry.batch(3))
        if used != "forward":
            engine.backward(losses)
        if used == "step":
            optimizer.step()
    engine.detach()
    after = facts(model, optimizer)
    for key, value in before.items():
        # a hook once registered leaves an empty dict on the tensor
        assert _bare(after[key]) == _bare(value), key
    entry.losses(model, entry.batch(3)).sum().backward()
    optimizer.step()


def _bare(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_bare(item) for item in value]
    return None if isinstance(value, dict) and not value else value


def test_detached_it_trains_as_a_plain_model() -> None:
    model, optimizer, engine = attached(ENTRY.model(torch.float64))
    train(model, optimizer, engine, 1)
    engine.detach()
    twin = ENTRY.model(torch.float64)
    twin.load_state_dict(model.state_dict())
    batch = ENTRY.batch(4, torch.float64)
    for m in (model, twin):
        ENTRY.losses(m, batch).sum().backward()
    assert all(torch.equal(g, gradients(twin)[n]) for n, g in gradients(model).items())


def test_gradients_without_noise_do_not_outlive_the_engine() -> None:
    model, _, engine = attached()
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    engine.detach()
    assert all(p.grad is None for p in model.parameters())
