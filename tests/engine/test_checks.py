"""What is no loss per sample is refused; a declared reduction is exact; one forward pass, one backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
from check_attached import ENTRY, Holder, attached, plan
from check_engine import ENTRIES, clipped_by_engine, gradients, grouped
from groupclip.errors import CoverageError, GroupClipError, PrivacyViolation


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
    "[B * T]": (
        lambda m: mlp_out(m).square().flatten(),
        ValueError,
        r"losses has 12 entries, .* one loss per sample\. If every sample has 3 in turn .* losses\.view\(4, -1\)\.mean\(1\)",
    ),
    "views joined": (
        lambda m: mlp_out(m).square().sum(1).view(2, 2).sum(0),
        ValueError,
        r"losses has 2 entries, .* If each sample has 2 rows in what the model was called with",
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
