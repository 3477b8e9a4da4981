"""A forward pass that moves trainable weights moves them once, or is refused: how often it runs is told by the samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import groupclip as gc
from apart import Runs, attached, drawn, linear


def in_place(m: Any) -> None:
    with torch.no_grad():
        m.first.weight.mul_(0.5)


def detached(m: Any) -> None:
    m.first.weight.detach().mul_(0.5)


def through_data(m: Any) -> None:
    m.first.weight.data.mul_(0.5)


def set_data(m: Any) -> None:
    m.first.weight.data = m.first.weight.data * 0.5


def set_without_gradients(m: Any) -> None:
    with torch.no_grad():
        m.first.weight.data = m.first.weight * 0.5


WAYS = [in_place, detached, through_data, set_data, set_without_gradients]


def model_of(move: Callable[[Any], None], runs: str) -> Runs:
    def run(m: Any, x: Tensor) -> Tensor:
        move(m)
        h = m.first(x)
        if runs == "one at a time":
            np.asarray(x)
        return m.last(h.tanh() if runs == "paths" and x.sum() > 0 else h)

    return Runs(run, first=linear(), last=linear()).double()


@pytest.mark.parametrize("move", WAYS)
def test_weights_are_moved_once_by_a_pass_that_runs_once(move: Callable[[Any], None]) -> None:
    model = model_of(move, "once")
    expected = model.first.weight.detach() * 0.5  # type: ignore[operator, union-attr]
    engine = attached(model)
    model(drawn(6, 5))
    assert torch.equal(model.first.weight.detach(), expected)  # type: ignore[operator, union-attr]
    engine.detach()


@pytest.mark.parametrize("runs", ["paths", "one at a time"])
@pytest.mark.parametrize("move", WAYS)
def test_a_pass_that_must_run_again_is_refused(move: Callable[[Any], None], runs: str) -> None:
    model = model_of(move, runs)
    engine = attached(model)
    with pytest.raises(gc.UnsupportedOperation, match=r"changes 'first\.weight', and it must run again .* after optimizer\.step"):
        model(drawn(6, 5))
    engine.detach()


@pytest.mark.parametrize("runs", ["paths", "one at a time"])
def test_weights_whose_memory_is_looked_at_may_have_paths(runs: str) -> None:
    model = model_of(lambda m: m.first.weight.data.norm().item(), runs)
    engine = attached(model)
    assert model(drawn(6, 5)).shape == (6, 5)
    engine.detach()
