"""What code asks of a tensor, about autograd and memory, is answered as for a sample alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from apart import Runs, drawn, linear, wrong


def exact(run: Callable[[Any, Tensor], Tensor]) -> None:
    model = Runs(run, first=linear(), last=linear(5, 4))
    assert wrong(model, [(drawn(4, 3, 5),), (drawn(3, 3, 5),)]) == []


#: Of the inputs, and of what a layer made of them.
ASKED: dict[str, Callable[[Tensor, Tensor], bool]] = {
    "requires_grad": lambda x, h: h.requires_grad,
    "requires_grad of an input": lambda x, h: x.requires_grad,
    "requires_grad that was set": lambda x, h: x.clone().requires_grad_().requires_grad,
    "requires_grad that was assigned": lambda x, h: _assigned(x.clone()).requires_grad,
    "is_leaf": lambda x, h: h.is_leaf,
    "grad_fn": lambda x, h: h.grad_fn is None,
    "changes in place": lambda x, h: _changed(h * 1)._version > 0,
    "a base": lambda x, h: h[:, 1:]._base is None,
    "a view": lambda x, h: (h * 1)[:, 1:]._is_view(),
    "one memory": lambda x, h: h[:, 0].data_ptr() == h.data_ptr(),
}


def _assigned(x: Tensor) -> Tensor:
    x.requires_grad = True
    return x


def _changed(h: Tensor) -> Tensor:
    return h[:, 1:].mul_(2)


@pytest.mark.parametrize("name", ASKED)
def test_what_hangs_on_a_fact(name: str) -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.first(x)
        return m.last(h if ASKED[name](x, h) else h.tanh())

    exact(run)


def _set(h: Tensor) -> Tensor:
    h.data = h.data * 2
    return h


#: A change behind autograd's back, or that hangs on how the numbers lie in memory.
CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "data": lambda h: (h.data.mul_(2), h)[1],
    "data of a view": lambda h: (h[:, 1].data.zero_(), h)[1],
    "data that is set": _set,
    "data of what was picked": lambda h: (h[0, (h.detach()[0, :, 0] > 0).sum() - 1].data.mul_(3), h)[1],
    "as_strided": lambda h: h[:, 1:].as_strided((1, 2, 5), (15, 5, 1), 0),
    "as_strided_": lambda h: h.as_strided_((1, 2, 5), (5, 5, 1), 5),
    "as_strided_scatter": lambda h: torch.as_strided_scatter(h, h.detach()[:, 0], (1, 5), (5, 1), 10),
    "resize_": lambda h: h + h.detach().clone().resize_(1, 1, 5),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_memory(name: str) -> None:
    exact(lambda m, x: m.last(CHANGES[name](m.first(x) * 1)))
