"""Operations whose batching rule in torch is wrong: exact all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from apart import Runs, drawn, linear, wrong

aten = torch.ops.aten
Run = Callable[[Any, Tensor], Tensor]


def ids(x: Tensor) -> Tensor:
    return (x > 0).long() + (x > 1).long()


#: With a table ``m.table [3, 4]``, or one of each sample.
LOOKED_UP: dict[str, Run] = {
    "torch": lambda m, x: torch.embedding(m.table, ids(x), 1),
    "torch, by names": lambda m, x: torch.embedding(m.table, indices=ids(x), padding_idx=1, scale_grad_by_freq=False),
    "torch, no padding": lambda m, x: torch.embedding(m.table, ids(x)),
    "an overload": lambda m, x: aten.embedding.default(m.table, ids(x), 1),
    "inside vmap": lambda m, x: torch.vmap(lambda i: F.embedding(i, m.table, padding_idx=-2))(ids(x)),
    "a table of each sample": lambda m, x: F.embedding(ids(x), m.makes(x).view(3, 4), padding_idx=1),
    "a table of each sample, no padding": lambda m, x: F.embedding(ids(x), m.makes(x).view(3, 4)),
    "a table of each sample, in torch": lambda m, x: torch.embedding(m.makes(x).view(3, 4), ids(x), 1),
}


@pytest.mark.parametrize("name", LOOKED_UP)
def test_the_rows_of_padding_take_no_gradient(name: str) -> None:
    model = Runs(LOOKED_UP[name], makes=linear(4, 12))
    model.table = nn.Parameter(drawn(3, 4))
    assert wrong(model, (drawn(4, 4),)) == []


PUT: dict[str, Run] = {
    "select_scatter": lambda m, x: torch.select_scatter(m.base, m.first(x)[0], 0, 1),
    "select_scatter, a method": lambda m, x: m.base.select_scatter(m.first(x)[0], 0, 1),
    "select_scatter, an overload": lambda m, x: aten.select_scatter.default(m.base, m.first(x)[0], 0, 1),
    "select_scatter, of samples": lambda m, x: torch.select_scatter(x, m.first(x)[0], 0, 0),
    "index_fill": lambda m, x: torch.index_fill(m.base, 0, torch.tensor([1]), m.first(x)[0, 0]),
    "index_fill, a method": lambda m, x: m.base.index_fill(0, torch.tensor([1]), m.first(x)[0, 0]),
    "index_fill, by name": lambda m, x: m.base.index_fill(0, torch.tensor([1]), value=m.first(x)[0, 0]),
    "index_fill, of samples": lambda m, x: x.index_fill(1, torch.tensor([1]), m.first(x)[0, 0]),
    "index_fill_": lambda m, x: (m.base * 1).index_fill_(0, torch.tensor([1]), m.first(x)[0, 0]),
    "index_fill with a number": lambda m, x: m.first(x).index_fill(1, torch.tensor([1]), 2.0),
}


@pytest.mark.parametrize("name", PUT)
def test_a_samples_numbers_put_into_a_constant(name: str) -> None:
    model = Runs(lambda m, x: PUT[name](m, x).sum(0, keepdim=True) * x, first=linear(4, 4))
    model.register_buffer("base", drawn(3, 4))
    assert wrong(model, (drawn(4, 4),)) == []


def test_a_loss_that_takes_chunks_of_the_classes() -> None:
    if not hasattr(F, "linear_cross_entropy"):
        pytest.skip("torch has no linear_cross_entropy here")
    model = Runs(lambda m, x: F.linear_cross_entropy(m.first(x), m.table, ids(x[:, 0])).view(1), first=linear(4, 4))
    model.table = nn.Parameter(drawn(3, 4))
    assert wrong(model, (drawn(4, 4),), losses=lambda m, batch: m(*batch)) == []
