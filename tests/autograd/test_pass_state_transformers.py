"""Activation checkpoints of every kind on transformers: exact in every style without re-entry, refused with it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import groupclip as gc
import oracle
from check_engine import ENTRIES, clipped_by_engine, faults, members
from groupclip.errors import UnsupportedOperation

STYLES = ("all-layer", "block-wise", "layer-wise", "param-wise", "uniform:2")
Run = Callable[..., Any]


def keep_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Selective: products are kept, the rest is computed again."""
    kept = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def to_the_end(function: Run, *inputs: Tensor) -> Tensor:
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        return checkpoint(function, *inputs, use_reentrant=False)  # pyright: ignore


SELECTIVE = functools.partial(create_selective_checkpoint_contexts, keep_products)
KINDS: dict[str, Run] = {
    "without re-entry": functools.partial(checkpoint, use_reentrant=False),
    "selective": functools.partial(checkpoint, use_reentrant=False, context_fn=SELECTIVE),
    "no early stop": to_the_end,
    "with re-entry": functools.partial(checkpoint, use_reentrant=True),
}


def checkpointed(name: str, outer: Run, inner: Run | None = None) -> nn.Module:
    """A model of the catalogue in float64: every block is a segment, and its attention another one inside."""
    model = ENTRIES[name].model(torch.float64)
    blocks: Any = model.blocks if name == "vit" else model.h
    for block in blocks:
        if inner is not None:
            block.attn.forward = functools.partial(inner, block.attn.forward)
        block.forward = functools.partial(outer, block.forward)
    return model


def found(name: str, style: str, outer: Run, inner: Run | None = None) -> list[str]:
    entry = ENTRIES[name]
    batch, plain, model = entry.batch(4, torch.float64), entry.model(torch.float64), checkpointed(name, outer, inner)
    groups = gc.partition(plain, style)
    thresholds = dict.fromkeys(groups, 0.2)
    want = oracle.clipped_sum(plain, entry.losses, batch, members(groups), "abadi", thresholds)
    got = clipped_by_engine(model, entry.losses, batch, groups, "abadi", thresholds)
    return faults(got, want, groups, thresholds, 1e-10)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["without re-entry", "selective", "no early stop"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", ["vit", "gpt-tied"])
def test_without_reentry_every_style_is_exact(name: str, style: str, kind: str) -> None:
    assert found(name, style, KINDS[kind]) == []


@pytest.mark.parametrize("style", STYLES)
def test_nested_without_reentry(style: str) -> None:
    assert found("gpt", style, KINDS["without re-entry"], KINDS["without re-entry"]) == []


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", ["vit", "gpt-tied"])
def test_with_reentry_is_refused_by_name(name: str, style: str) -> None:
    with pytest.raises(UnsupportedOperation, match="use_reentrant=False"):
        found(name, style, KINDS["with re-entry"])


@pytest.mark.filterwarnings(
    "ignore:None of the inputs have requires_grad"
)  # of the inner segment, in the outer's first pass
@pytest.mark.parametrize("style", ["all-layer", "layer-wise", "param-wise"])
@pytest.mark.parametrize(
    ("outer", "inner"),
    [("with re-entry", "with re-entry"), ("with re-entry", "without re-entry"), ("without re-entry", "with re-entry")],
)
def test_nested_with_reentry_is_refused(outer: str, inner: str, style: str) -> None:
    with pytest.raises(UnsupportedOperation, match="use_reentrant=False"):
        found("gpt", style, KINDS[outer], KINDS[inner])


@pytest.mark.parametrize("style", ["all-layer", "layer-wise"])
def test_with_reentry_around_what_is_used_beside_the_model_is_refused(style: str) -> None:
    """The engine sees the loss alone there; the checkpoint would run a backward pass inside of it."""
    entry = ENTRIES["mlp"]
    model = entry.model(torch.float64)
    x, _ = entry.batch(4, torch.float64)
    engine = gc.attach(model, None, style, None)
    with engine.forward_on(x):
        out = checkpoint(model[0], x.requires_grad_(), use_reentrant=True)  # pyright: ignore
    with pytest.raises(UnsupportedOperation, match="use_reentrant=False"):
        engine.backward(out.square().sum(1))


class Whole(nn.Module):
    """The whole model is one segment, under a head outside."""

    def __init__(self, kind: str | None) -> None:
        super().__init__()
        self.kind = kind
        self.stem = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind is None:
            return self.stem(x).square().sum(1)
        if self.kind == "sequential":
            return checkpoint_sequential(self.stem, 2, x, use_reentrant=False).square().sum(1)
        return KINDS[self.kind](self.stem, x).square().sum(1)


@pytest.mark.parametrize("style", ["all-layer", "layer-wise"])
@pytest.mark.parametrize("kind", ["without re-entry", "sequential"])
def test_one_segment_holds_every_group(kind: str, style: str) -> None:
    torch.manual_seed(0)
    plain, model = Whole(None).double(), Whole(kind).double()
    model.load_state_dict(plain.state_dict())
    x = torch.randn(4, 5).double()
    batch = (x,)
    groups = gc.partition(model, style)
    thresholds = dict.fromkeys(groups, 0.2)
    want = oracle.clipped_sum(plain, lambda m, b: m(*b), (x.detach(),), members(groups), "abadi", thresholds)
    got = clipped_by_engine(model, lambda m, b: m(*b), batch, groups, "abadi", thresholds)
    assert faults(got, want, groups, thresholds, 1e-10) == []


def test_a_refusal_leaves_no_gradient_and_the_engine_usable() -> None:
    model = checkpointed("gpt", KINDS["with re-entry"])
    entry = ENTRIES["gpt"]
    engine = gc.attach(model, None, "all-layer", None)
    with pytest.raises(UnsupportedOperation, match="use_reentrant=False"):
        engine.backward(entry.losses(model, entry.batch(4, torch.float64)))
    assert all(p.grad is None for p in model.parameters())
    engine.detach()
    plain = entry.model(torch.float64)
    again = gc.attach(plain, None, "layer-wise", None)
    again.backward(entry.losses(plain, entry.batch(4, torch.float64)))


class Padded(nn.Module):
    """x [B, T, 4] and a mask: samples without padding take another path, inside of checkpoints and outside."""

    def __init__(self, kind: str | None) -> None:
        super().__init__()
        self.kind, self.first, self.second = kind, nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def block(self, x: Tensor, mask: Tensor) -> Tensor:
        x = torch.tanh(self.first(x)) * torch.rand(1, 1, 4, dtype=x.dtype).gt(-1)
        if not mask.all():
            x = x * mask[..., None] + 0.5
        return torch.tanh(self.second(x)).roll(1, 0)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.block(x, mask) if self.kind is None else KINDS[self.kind](self.block, x, mask)
        return self.head(x if mask.all() else x * 2).square().sum((1, 2))


@pytest.mark.parametrize("style", ["all-layer", "layer-wise", "param-wise"])
@pytest.mark.parametrize("kind", ["without re-entry", "no early stop"])
@pytest.mark.parametrize("padded", [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)])
def test_samples_that_take_different_paths_through_a_checkpoint(kind: str, style: str, padded: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    plain = Padded(None).double()
    model = Padded(kind).double()
    model.load_state_dict(plain.state_dict())
    mask = torch.ones(4, 5).double()
    for i in padded:
        mask[i, 3:] = 0
    batch = (torch.randn(4, 5, 4).double(), mask)
    groups = gc.partition(model, style)
    thresholds = dict.fromkeys(groups, 0.2)
    want = oracle.clipped_sum(plain, lambda m, b: m(*b), batch, members(groups), "abadi", thresholds)
    got = clipped_by_engine(model, lambda m, b: m(*b), batch, groups, "abadi", thresholds)
    assert faults(got, want, groups, thresholds, 1e-10) == []
