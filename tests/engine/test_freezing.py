"""Which parameters train, from step to step: halves of layers, biases alone, freezing, unfreezing, unused branches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import groupclip as gc
from check_attached import ENTRY, attached, numbers, plan
from check_engine import CORE, ENTRIES, Clipped, clipped_by_engine, faults, gradients, grouped, inexact, members
from groupclip.errors import CoverageError
from oracle import clipped_sum


@pytest.mark.parametrize("name", CORE)
def test_biases_alone(name: str) -> None:
    """BiTFiT: the head and every bias. Norms are of what trains; weights get no gradient and don't move."""
    entry = ENTRIES[name]
    model = entry.model()
    for n, p in model.named_parameters():
        p.requires_grad_("bias" in n or n.startswith(("head", "4.", "norm")))
    assert inexact(model, entry.batch(4), entry.losses, ("all-layer", "param-wise")) == []


def test_biases_alone_move_and_weights_stay() -> None:
    model = ENTRY.model()
    for n, p in model.named_parameters():
        p.requires_grad_("bias" in n)
    before = numbers(model)
    model, optimizer, engine = attached(model)
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    assert [p.grad is not None for p in model.parameters()] == [False, True, False, False, True]
    optimizer.step()
    moved = [not torch.equal(p.detach(), old) for p, old in zip(model.parameters(), before, strict=True)]
    assert moved == [False, True, False, False, True]


@pytest.mark.parametrize("style", ["all-layer", "layer-wise", "param-wise"])
def test_frozen_and_unfrozen_between_steps(style: str) -> None:
    """Norms are of what trains now: nothing is left of what was frozen, nothing lacks of what came back."""
    model, batch = ENTRY.model(torch.float64), ENTRY.batch(6, torch.float64)
    groups = grouped(model, style)
    thresholds = dict.fromkeys(groups, 0.2)
    engine = gc.attach(model, None, groups, None, clip="abadi", thresholds=thresholds)
    for frozen in ((), ("0.weight", "4.bias"), ("2.weight",), ("0.weight", "0.bias"), ()):
        for n, p in model.named_parameters():
            p.requires_grad_(n not in frozen)
        rest = {g: tuple(n for n in groups[g] if n not in frozen) for g in groups}
        rest = {g: names for g, names in rest.items() if names}
        twin = ENTRY.model(torch.float64)
        for n, p in twin.named_parameters():
            p.requires_grad_(n not in frozen)
        want = clipped_sum(twin, ENTRY.losses, batch, rest, "abadi", thresholds)
        engine.backward(ENTRY.losses(model, batch))
        norms = engine.unsafe_norms()
        for g in groups:
            torch.testing.assert_close(norms[g].double(), want.norms.get(g, torch.zeros(len(norms[g])).double()))
        for n, p in model.named_parameters():
            if n in frozen:
                assert p.grad is None
            else:
                torch.testing.assert_close(p.grad, want.sums[n], rtol=0, atol=1e-10)
        engine.discard()


def test_frozen_between_forward_and_backward() -> None:
    """The pass was recorded with it; its norm still bounds what the sample does, and the step drops its share."""
    model, batch = ENTRY.model(torch.float64), ENTRY.batch(4, torch.float64)
    groups = grouped(model, "all-layer")
    want = clipped_by_engine(model, ENTRY.losses, batch, groups)
    model, optimizer, engine = attached(model, "all-layer")
    losses = ENTRY.losses(model, batch)
    model[0].requires_grad_(False)  # type: ignore[index]
    engine.backward(losses)
    assert torch.equal(engine.unsafe_norms()["all"], want.norms["all"])
    before = numbers(model)
    optimizer.step()
    moved = [not torch.equal(p.detach(), old) for p, old in zip(model.parameters(), before, strict=True)]
    assert moved == [False, False, True, True, True]


def test_everything_frozen_and_back() -> None:
    model, optimizer, engine = attached()
    model.requires_grad_(False)
    with pytest.raises(ValueError, match=r"losses don't require grad"):
        engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    model.requires_grad_(True)
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    optimizer.step()


@pytest.mark.parametrize("way", ["the model", "its parts", "compiled"])
def test_newly_trainable_is_an_error_before_it_is_used(way: str) -> None:
    model = ENTRY.model()
    model[2].requires_grad_(False)  # type: ignore[index]
    model, _, engine = attached(model)
    model[2].requires_grad_(True)  # type: ignore[index]
    ran: list[nn.Module] = []
    for layer in model.children():
        layer.register_forward_hook(lambda layer, *_: ran.append(layer))
    x, _ = ENTRY.batch(4)
    with pytest.raises(
        CoverageError, match=r"'2\.weight' is trainable but in no group: it was unfrozen, added or replaced"
    ):
        if way == "its parts":
            with engine.forward_on(x):
                for layer in model.children():
                    x = layer(x)
        elif way == "compiled":
            torch.compile(model, backend="eager")(x)
        else:
            model(x)
    assert ran == []
    engine.detach()
    engine = gc.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "layer-wise", plan())
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    assert model[2].weight.grad is not None  # type: ignore[index]
    torch._dynamo.reset()


class Branches(nn.Module):
    """``open``: which of its branches a pass takes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right, self.head = (nn.Linear(4, 4) for _ in range(4))
        self.open = "both"

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        taken = [b for n, b in (("left", self.left), ("right", self.right)) if self.open in (n, "both")]
        return self.head(sum((torch.tanh(b(x)) for b in taken), x)).square().sum(1)


@pytest.mark.parametrize("style", ["all-layer", "layer-wise", "param-wise"])
def test_a_branch_that_one_step_leaves_out(style: str) -> None:
    """No stale norm of the last step, in any order of steps; the branch left out gets noise and no gradient."""
    torch.manual_seed(0)
    model, batch = Branches().double(), (torch.randn(5, 4).double(),)
    groups = gc.partition(model, style)
    thresholds = dict.fromkeys(groups, 0.2)
    wants = {}
    for way in ("both", "left", "right", "neither"):
        model.open = way
        wants[way] = clipped_sum(model, lambda m, b: m(*b), batch, members(groups), "abadi", thresholds)
    engine = gc.attach(model, None, groups, None, clip="abadi", thresholds=thresholds)
    for way in ("left", "both", "neither", "right", "left"):
        model.open = way
        engine.backward(model(*batch))
        norms = {g: n if len(n) else torch.zeros(5) for g, n in engine.unsafe_norms().items()}
        got = Clipped(gradients(model), norms)
        assert faults(got, wants[way], groups, thresholds, 1e-10) == [], way
        engine.discard()


def test_twin_a_stale_norm_would_be_seen() -> None:
    """The norms of two ways through the model differ by far more than the tolerance."""
    torch.manual_seed(0)
    model, batch, norms = Branches().double(), (torch.randn(5, 4).double(),), []
    for way in ("both", "left"):
        model.open = way
        groups = gc.partition(model, "all-layer")
        norms.append(clipped_sum(model, lambda m, b: m(*b), batch, members(groups)).norms["all"])
    assert (norms[0] - norms[1]).abs().min() > 1e-4
