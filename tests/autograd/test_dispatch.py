"""Operations whose per-sample gradients can't be followed are refused; none is dropped or let through unclipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
from check_attached import ENTRY, attached
from groupclip.errors import CoverageError, GroupClipError, PrivacyViolation, UnsupportedOperation


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_norm": 1.0}, r"with max_norm rewrites rows"),
        ({"scale_grad_by_freq": True}, r"scale_grad_by_freq divides by how often"),
    ],
)
@pytest.mark.parametrize("bag", [False, True])
def test_nor_beside_the_forward_pass(bag: bool, options: dict[str, Any], message: str) -> None:
    model = Embeds(**options)
    if bag:
        model.table = nn.EmbeddingBag(7, 3, mode="sum", **options)  # pyright: ignore[reportAttributeAccessIssue]
    table = model.table.weight.detach().clone()
    model, _, engine = attached(model)
    ids = torch.randint(7, (4, 5))
    with engine.forward_on(ids), pytest.raises(UnsupportedOperation, match=message):
        model.table(ids)  # type: ignore[operator]
    assert torch.equal(model.table.weight.detach(), table)  # type: ignore[union-attr, arg-type]


def test_nor_are_statistics_of_a_batch_used_there() -> None:
    model, _, engine = attached(nn.Linear(3, 3))
    x = torch.randn(4, 3)
    with engine.forward_on(x), pytest.raises(PrivacyViolation, match="statistics of the batch mixes samples"):
        F.batch_norm(x, None, None, model.bias, training=True)
    with engine.forward_on(x), pytest.raises(PrivacyViolation, match="statistics of the batch into the model"):
        F.instance_norm(torch.randn(4, 3, 7), torch.zeros(3), torch.ones(3), weight=model.bias)


def test_a_sparse_gradient_beside_the_forward_pass() -> None:
    model = Embeds(sparse=True)
    ids = torch.randint(7, (4, 5))
    rows = [torch.autograd.grad(model(ids[i : i + 1]).sum(), model.table.weight)[0].to_dense() for i in range(4)]
    want = sum(g * min(1.0, 0.1 / float(g.norm())) for g in rows)
    engine = gc.attach(model, None, "all-layer", None, clip="abadi", thresholds=0.1)
    with engine.forward_on(ids):
        losses = model.table(ids).square().mean((1, 2))
    engine.backward(losses)
    assert torch.allclose(model.table.weight.grad, want, atol=1e-6)  # type: ignore[union-attr, arg-type]
    engine.detach()


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
    with pytest.raises(GroupClipError, match=r"reduced loss|isn't a gradient of the training loss"):
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        engine.backward(slope.square().sum(1))
    assert all(p.grad is None for p in model.parameters())
