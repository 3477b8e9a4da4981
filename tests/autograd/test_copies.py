"""A change of what alone is a view is seen by what it is a view of, and the other way round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from apart import Runs, drawn, linear, wrong


def exact(run: Callable[[Any, Tensor], Tensor], x: Tensor | None = None) -> None:
    model = Runs(run, first=linear(4, 4), last=linear(4, 3))
    assert wrong(model, (drawn(4, 4) if x is None else x,)) == []


def one(h: Tensor) -> Tensor:
    """The number 1, which is read off the sample."""
    return (h.detach()[0] > -99).sum() - 3


def some(h: Tensor) -> Tensor:
    """A number that not all samples have."""
    return (h.detach()[0, :2] > 0).sum()


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda h: h.view(2, 2),
    "reshape": lambda h: h.reshape(-1),
    "transpose": lambda h: h.mT,
    "moveaxis": lambda h: torch.moveaxis(h, 0, 1),
    "unfold": lambda h: h.unfold(1, 2, 2),
    "diagonal": lambda h: h.view(2, 2).diagonal(),
    "tensor_split": lambda h: h.tensor_split(3, 1)[0],
    "expand_as": lambda h: h.expand_as(h),
    "contiguous": lambda h: h.contiguous(),
    "the same dtype": lambda h: h.to(torch.float64),
    "no dropout": lambda h: F.dropout(h, 0.5, training=False),
    "as complex numbers": lambda h: torch.view_as_complex(h.view(1, 2, 2)),
    "a slice": lambda h: h[:, 1:3],
    "narrow, by value": lambda h: h.narrow(1, one(h), 2),
    "select, by value": lambda h: h.select(1, one(h)),
    "tensor_split, by value": lambda h: h.tensor_split(one(h).view(1), 1)[1],
    "a slice, by value": lambda h: h[:, one(h) :],
    "a number, by value": lambda h: h[0, one(h)],
    "a number of each sample": lambda h: h[0, some(h)],
    "a row of each sample": lambda h: h[0].view(2, 2)[some(h).clamp(max=1)],
    "diagonal, by value": lambda h: h.view(2, 2).diagonal(one(h) - 1),
}

CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "mul_": lambda v: v.mul_(2),
    "setitem": lambda v: v.__setitem__(..., 1),
    "inplace": lambda v: F.leaky_relu(v, 3.0, inplace=True) if v.is_floating_point() else v.zero_(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_that_is_changed(view: str, change: str) -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.first(x) * 1
        CHANGES[change](VIEWS[view](h))
        return m.last(h)

    exact(run)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_what_is_changed(view: str) -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.first(x) * 1
        part = VIEWS[view](h)
        h.mul_(3)
        return m.last(m.first(x) * part.abs().sum())

    exact(run)


def test_a_view_of_a_constant_into_which_samples_are_written() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        table = torch.zeros(3, 4, dtype=x.dtype)
        table[some(x)].add_(m.first(x)[0])
        return m.last(table.sum(0, keepdim=True) * x)

    exact(run)


def test_an_entry_that_is_replaced_by_number() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.first(x) * 1
        h[0, some(x)] *= 3
        h[0, one(x) :] += 1
        return m.last(h)

    exact(run)
