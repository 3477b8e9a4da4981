"""Operations that vmap can't run: each sample's result is its own, and what is written to is its own too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from apart import Runs, drawn, linear, wrong

aten = torch.ops.aten


def _foreach(t: Tensor, h: Tensor) -> None:
    torch._foreach_add_([h * 1, t], [h, h])  # pyright: ignore[reportPrivateImportUsage]


#: Into a constant, by names that don't tell it at once.
WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "an overload": lambda t, h: aten.add_.Tensor(t, h),
    "an overload's copy": lambda t, h: aten.copy_.default(t, h),
    "a number": lambda t, h: aten.fill_.Tensor(t, h[0, 0].detach()),
    "the second of a list": _foreach,
    "out": lambda t, h: torch.add(h.detach(), 1, out=t),
    "an overload's out": lambda t, h: aten.add.out(h.detach(), h.detach(), out=t),
    "two outs": lambda t, h: torch.max(h.detach(), 0, out=(t[0], torch.zeros(4, dtype=torch.long))),
    "memory": lambda t, h: t.data.add_(h.detach()),
    "in place of another's result": lambda t, h: F.relu(t.add_(h), inplace=True),
}


@pytest.mark.parametrize("name", WRITES)
def test_samples_written_into_a_constant(name: str) -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        table = torch.full((1, 4), 0.5, dtype=x.dtype)
        WRITES[name](table, m.first(x))
        return m.last(table + m.first(x).tanh())

    model = Runs(run, first=linear(4, 4), last=linear(4, 3))
    assert wrong(model, [(drawn(4, 4),), (drawn(3, 4),)]) == []


#: Autograd keeps what they change.
IN_PLACE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "pow_": lambda h, x: h.pow_(x.sigmoid()),
    "**=": lambda h, x: h.__ipow__(x.sigmoid()),
    "float_power_": lambda h, x: h.float_power_(x.sigmoid()),
    "cumprod_": lambda h, x: h.cumprod_(1),
    "hypot_": lambda h, x: h.hypot_(x),
    "ldexp_": lambda h, x: h.ldexp_(x),
    "index_reduce_": lambda h, x: h.index_reduce_(1, torch.tensor([1, 1]), x[:, :2], "prod"),
}


@pytest.mark.filterwarnings("ignore:index_reduce")  # that it is in beta
@pytest.mark.parametrize("name", IN_PLACE)
def test_a_change_in_place_that_has_no_batching_rule(name: str) -> None:
    model = Runs(
        lambda m, x: m.last(IN_PLACE[name](m.first(x).abs() + 0.5, m.first(x))), first=linear(4, 4), last=linear(4, 3)
    )
    assert wrong(model, (drawn(4, 4),)) == []
