"""Parts of a parameter, cut before they meet the batch: exact however they are cut, and normed without its whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from check_engine import inexact
from check_rules import METHODS, B, Calls, observed, randn
from groupclip.persample.norms import GRAM


def attention(x: Tensor, *parts: Tensor) -> Tensor:
    q, k, v = (F.linear(x, w) for w in parts)
    return F.scaled_dot_product_attention(q, k, v)


#: For w [6, 4] and x [B, 5, 4], what each sample needs of w alone.
APART: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "chunk": lambda x, w: attention(x, *w.chunk(3)),
    "split": lambda x, w: attention(x, *w.split([2, 2, 2])),
    "split of a size": lambda x, w: attention(x, *torch.split(w, 2)),
    "tensor_split": lambda x, w: attention(x, *torch.tensor_split(w, 3)),
    "unflatten and unbind": lambda x, w: attention(x, *w.unflatten(0, (3, 2)).unbind(0)),
    "view and index": lambda x, w: attention(x, *(w.view(3, 2, 4)[i] for i in range(3))),
    "narrow": lambda x, w: attention(x, w.narrow(0, 0, 2), w.narrow(0, 2, 2), torch.narrow(w, 0, 4, 2)),
    "slices": lambda x, w: attention(x, w[:2], w[2:4], w[4:]),
    "steps": lambda x, w: attention(x, w[::3], w[1::3], w[2::3]),
    "columns": lambda x, w: F.linear(x[..., :1], w[:, :1]) + torch.tanh(F.linear(x[..., 1:], w[:, 1:])),
    "matmul with columns": lambda x, w: x @ w.mT[:, :2] + torch.tanh(x @ w.mT[:, 3:5]),
    "rows of scales": lambda x, w: torch.tanh(x * w[0] + w[1]) * w.select(0, 5),
    "numbers": lambda x, w: x * w[1, 2] + torch.tanh(x * w[-1, 0]),
    "ellipsis": lambda x, w: torch.tanh(x * w[..., 2, :]) + w[None, 3],
    "a vector of a matrix": lambda x, w: torch.tanh(x @ w[:4, 1:2]) * w[5, 3],
    "slices of a transpose": lambda x, w: attention(x, w.t()[:, :2].t(), w.t()[:, 2:4].t(), w.t()[:, 4:].t()),
    "diagonal": lambda x, w: torch.tanh(x * w[:4].diagonal()) + w[4],
    "one slice alone": lambda x, w: F.linear(x, w[1:3]),
    "hsplit": lambda x, w: torch.cat([torch.tanh(F.linear(x[..., :2], p)) for p in w.hsplit(2)], 1),
}

#: The same, where parts overlap, repeat entries, or meet the whole.
TOGETHER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "overlapping rows": lambda x, w: F.linear(x, w[:4]) + torch.tanh(F.linear(x, w[2:])),
    "rows and columns": lambda x, w: F.linear(x, w[:2]).tanh().sum(-1, keepdim=True) * F.linear(x[..., :2], w[:, :2]),
    "the same slice twice": lambda x, w: F.linear(torch.tanh(F.linear(x, w[:4])), w[:4]),
    "slice and transpose": lambda x, w: F.linear(torch.tanh(F.linear(x, w[:4])), w[:4].t()),
    "slice and whole": lambda x, w: torch.tanh(F.linear(x, w))[..., :4] * w[3],
    "whole, transposed and slices": lambda x, w: F.linear(x, w[1:3]).tanh() @ w[4:] + F.linear(x, w) @ w,
    "expanded": lambda x, w: torch.tanh(x * w[2].expand(5, -1)) + w[2:3],
    "repeated ids": lambda x, w: torch.tanh(x * w[torch.tensor([1, 1, 0, 5, 1])]),
    "index_select": lambda x, w: torch.tanh(F.linear(x, w.index_select(0, torch.tensor([3, 0])))) @ w[:2],
    "a mask": lambda x, w: torch.tanh(F.linear(x, w[torch.tensor([True, False, True, True, False, True])])),
    "steps that meet": lambda x, w: torch.tanh(F.linear(x, w[::2])) * F.linear(x, w[::3]).sum(-1, keepdim=True),
    "shifted slices": lambda x, w: torch.tanh(x * (1 + w[0])) * (1 + w[1]),
    "cast slices": lambda x, w: torch.tanh(x * w[0].to(torch.float64)) + w[1].double() + w[0].double(),
    "unfolded": lambda x, w: torch.tanh(F.linear(x, w.unfold(0, 2, 1)[:, :, 0])),
    "flipped": lambda x, w: torch.tanh(F.linear(x, w.flip(0))) @ w,
    "rolled": lambda x, w: torch.tanh(F.linear(x, w.roll(1, 0))) @ w,
    "chunks used twice": lambda x, w: attention(torch.tanh(attention(x, *w.chunk(3))) @ w[:2], *w.chunk(3)),
}  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cut", [*APART, *TOGETHER])
def test_parts_of_a_parameter(cut: str, method: str) -> None:
    for size in (1, B):
        model = Calls((APART | TOGETHER)[cut], w=randn(6, 4))
        assert inexact(model, (randn(size, 5, 4),), methods=method) == [], size


@pytest.mark.parametrize("cut", ["chunk", "slices", "overlapping rows", "slice and transpose"])
def test_no_samples(cut: str) -> None:
    assert inexact(Calls((APART | TOGETHER)[cut], w=randn(6, 4)), (randn(0, 5, 4),)) == []


@pytest.mark.parametrize(
    "cut", ["chunk", "split", "unflatten and unbind", "narrow", "slices", "steps", "slices of a transpose"]
)
def test_disjoint_parts_keep_no_instantiated_whole(cut: str) -> None:
    """Three parts of w, each by its own Gram matrices: a gradient of the whole of w for each part would be nine times that."""
    model, batch = Calls(APART[cut], w=randn(6, 4)).double(), (randn(B, 5, 4).double(),)
    with observed(model, batch) as (engine, uses):
        for slot in engine._slots:
            slot.method = GRAM
        engine.backward(model(*batch).square().sum((1, 2)))
    assert GRAM in uses.methods["w"]
