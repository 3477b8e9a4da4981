"""``einsum``, ``bmm``, ``baddbmm``, ``bilinear``, ``prelu`` with a parameter on either side: exact, and by rules."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from check_engine import inexact
from check_rules import METHODS, B, Calls, randn, slow_operations

#: equation (parameter on the right) -> (shape of x without its samples, shape of w). Samples are the letter b, first in x.
BY_A_RULE: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "btd,de->bte": ((4, 3), (3, 2)),
    "btd,ed->bte": ((4, 3), (2, 3)),
    "btd,de->bet": ((4, 3), (3, 2)),
    "btd,dhk->bhtk": ((4, 3), (3, 2, 5)),
    "bhtk,hkd->btd": ((2, 4, 5), (2, 5, 3)),
    "bhtk,dhk->btd": ((2, 4, 5), (3, 2, 5)),
    "btd,d->bt": ((4, 3), (3,)),
    "btd,td->b": ((4, 3), (4, 3)),
    "bt,d->btd": ((4,), (3,)),
    "bt,ts->bs": ((4,), (4, 3)),
    "bld,lrd->blr": ((4, 3), (4, 2, 3)),
    "bhld,lrd->bhlr": ((2, 4, 3), (4, 5, 3)),
    "bhd,hde->bhe": ((2, 3), (2, 3, 4)),
    "bhtd,hde->bthe": ((2, 4, 3), (2, 3, 5)),
    "btd,d->btd": ((4, 3), (3,)),
    "btd,t->bd": ((4, 3), (4,)),
    "btd,de->be": ((4, 3), (3, 2)),
    "btdx,de->bte": ((4, 3, 2), (3, 2)),
    "b...d,de->b...e": ((4, 2, 3), (3, 2)),
    "...d,de->...e": ((4, 3), (3, 2)),
    " b t d , d e -> b t e ": ((4, 3), (3, 2)),
    "btd,de": ((4, 3), (3, 2)),
    "bd,->bd": ((3,), ()),
    "bd,kd->kb": ((3,), (2, 3)),
}
#: Letters that stand for a diagonal or that the parameter alone has: exact, the generic way.
OTHERWISE: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "btd,ddk->btk": ((4, 3), (3, 3, 2)),
    "btt,td->bd": ((4, 4), (4, 3)),
    "btd,de->bt": ((4, 3), (3, 2)),
    "btd,x->btd": ((4, 3), (5,)),
}


def with_einsum(equation: str, left: bool) -> Callable[[Tensor, Tensor], Tensor]:
    if not left:
        return lambda x, w: batch_first(torch.einsum(equation, x, w), x)
    operands, arrow, result = equation.partition("->")
    first, second = operands.split(",")
    flipped = f"{second},{first}{arrow}{result}"
    return lambda x, w: batch_first(torch.einsum(flipped, w, x), x)


def batch_first(out: Tensor, x: Tensor) -> Tensor:
    """An equation puts the samples last, and one leaves nothing but the samples."""
    out = out if out.shape[0] == x.shape[0] else out.movedim(-1, 0)
    return out.unsqueeze(-1)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("equation", [*BY_A_RULE, *OTHERWISE])
def test_einsum(equation: str, left: bool) -> None:
    shape, own = (BY_A_RULE | OTHERWISE)[equation]
    if left and "->" not in equation:
        pytest.skip("without an arrow the letters come out in order, whichever operand is first")
    for size in (1, B):
        model = Calls(with_einsum(equation, left), w=randn(*own) if own else torch.tensor(0.7))
        for method in METHODS:
            assert inexact(model, (randn(size, *shape),), methods=method) == [], (size, method)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("equation", BY_A_RULE)
def test_einsum_by_a_rule(equation: str, left: bool) -> None:
    shape, own = BY_A_RULE[equation]
    model = Calls(with_einsum(equation, left), w=randn(*own) if own else torch.tensor(0.7))
    assert slow_operations(model, (randn(B, *shape),)) == set()


PRODUCTS: dict[str, tuple[Callable[..., Tensor], dict[str, tuple[int, ...]], tuple[int, ...]]] = {
    "einsum with a list": (lambda x, w: torch.einsum("btd,de->bte", [x, w]), {"w": (4, 5)}, (6, 4)),
    "einsum, sublists": (lambda x, w: torch.einsum(x, [0, 1, 2], w, [2, 3], [0, 1, 3]), {"w": (4, 5)}, (6, 4)),
    "einsum, sequence first": (
        lambda x, w: torch.einsum("tbd,dhk->tbhk", x.transpose(0, 1), w).transpose(0, 1), {"w": (4, 2, 3)}, (6, 4),
    ),
    "einsum, samples third": (
        lambda x, w: torch.einsum("tdb,de->bte", x.permute(1, 2, 0), w), {"w": (4, 3)}, (6, 4),
    ),
    "einsum, relative positions": (
        lambda x, w: torch.einsum("ibnd,jnd->bnij", x.unflatten(-1, (2, 2)).transpose(0, 1), w), {"w": (5, 2, 2)}, (6, 4),
    ),
    "einsum of three, bilinear": (lambda x, w: torch.einsum("btd,bte,kde->btk", x, x.cos(), w), {"w": (3, 4, 4)}, (6, 4)),
    "einsum of three, a constant": (
        lambda x, w: torch.einsum("btd,de,ts->bse", x, w, torch.linspace(-1, 1, 12, dtype=x.dtype).view(6, 2)),
        {"w": (4, 3)}, (6, 4),
    ),
    "einsum of two parameters": (lambda x, v, w: torch.einsum("btd,dr,re->bte", x, v, w), {"v": (4, 2), "w": (2, 3)}, (6, 4)),
    "einsum of a parameter twice": (lambda x, w: torch.einsum("btd,de,fe->btf", x, w, w), {"w": (4, 3)}, (6, 4)),
    "einsum of a transpose": (lambda x, w: torch.einsum("btd,de->bte", x, w.t()), {"w": (5, 4)}, (6, 4)),
    "einsum of a slice": (lambda x, w: torch.einsum("btd,de->bte", x, w[:, 1:3]), {"w": (4, 5)}, (6, 4)),
    "einsum of a constant": (
        lambda x, w: x + torch.einsum("td,de->te", torch.linspace(-1, 1, 24, dtype=x.dtype).view(6, 4), w), {"w": (4, 4)}, (6, 4),
    ),
    "bmm expanded": (lambda x, w: torch.bmm(x, w.expand(len(x), -1, -1)), {"w": (1, 4, 5)}, (6, 4)),
    "bmm expanded, left": (lambda x, w: torch.bmm(w.expand(len(x), -1, -1), x), {"w": (1, 5, 6)}, (6, 4)),
    "bmm repeated": (lambda x, w: torch.bmm(x, w.unsqueeze(0).repeat(len(x), 1, 1)), {"w": (4, 5)}, (6, 4)),
    "bmm, heads in front": (
        lambda x, w: torch.bmm(x.unflatten(-1, (2, 2)).permute(2, 0, 1, 3).flatten(1, 2), w).unflatten(1, (-1, 6)).transpose(0, 1),
        {"w": (2, 2, 3)}, (6, 4),
    ),
    "baddbmm": (lambda x, b, w: torch.baddbmm(b, x, w.expand(len(x), 4, 5)), {"b": (1, 1, 5), "w": (1, 4, 5)}, (6, 4)),
    "baddbmm of activations": (lambda x, b: torch.baddbmm(b, x, x.mT, beta=0.5, alpha=2), {"b": (1, 1, 6)}, (6, 4)),
    "addbmm": (lambda x, w: torch.stack([torch.addbmm(w, a[None], a.mT[None]) for a in x]), {"w": (6, 6)}, (6, 4)),
    "matmul of heads": (lambda x, w: x.unflatten(-1, (2, 2)).transpose(1, 2) @ w, {"w": (2, 2, 3)}, (6, 4)),
    "matmul of heads, left": (lambda x, w: w @ x.unflatten(-1, (2, 2)).transpose(1, 2), {"w": (2, 3, 6)}, (6, 4)),
    "matmul of a stack with one": (lambda x, w: x.unsqueeze(1) @ w, {"w": (2, 4, 5)}, (6, 4)),
    "matmul of a vector": (lambda x, w: x @ w, {"w": (4,)}, (6, 4)),
    "matmul of a vector, left": (lambda x, w: w @ x, {"w": (6,)}, (6, 4)),
    "matmul of vectors": (lambda x, w: (x @ w)[:, None], {"w": (4,)}, (4,)),
    "matmul of rows": (lambda x, w: w @ x.unsqueeze(-1), {"w": (5, 4)}, (4,)),
    "matmul, samples last": (lambda x, w: (w @ x.t()).t(), {"w": (5, 4)}, (4,)),
    "mv": (lambda x, w: torch.mv(x, w)[:, None], {"w": (4,)}, (4,)),
    "dot": (lambda x, w: torch.stack([torch.dot(a, w) for a in x])[:, None], {"w": (4,)}, (4,)),
    "inner": (lambda x, w: torch.inner(x, w), {"w": (5, 4)}, (6, 4)),
    "outer": (lambda x, w: torch.outer(x, w), {"w": (3,)}, ()),
    "tensordot": (lambda x, w: torch.tensordot(x, w, 1), {"w": (4, 5)}, (6, 4)),
    "tensordot of two": (lambda x, w: torch.tensordot(x, w, ([1, 2], [1, 0])), {"w": (4, 6, 2)}, (6, 4)),
    "addmv": (lambda x, b, w: torch.addmv(b.expand(len(x)), x, w)[:, None], {"b": (1,), "w": (4,)}, (4,)),
    "chain_matmul": (lambda x, v, w: torch.linalg.multi_dot([x, v, w]), {"v": (4, 2), "w": (2, 3)}, (4,)),
    "bilinear": (lambda x, w: F.bilinear(x, x.cos(), w), {"w": (3, 4, 4)}, (6, 4)),
    "bilinear with a bias": (lambda x, w, b: F.bilinear(x, x[..., :3].cos(), w, b), {"w": (3, 4, 3), "b": (3,)}, (6, 4)),
    "bilinear, one position": (lambda x, w, b: torch.bilinear(x, x.cos(), w, b), {"w": (2, 4, 4), "b": (2,)}, (4,)),
    "bilinear, keywords": (lambda x, w: F.bilinear(input1=x, input2=x.sin(), weight=w), {"w": (3, 4, 4)}, (6, 4)),
    "bilinear, a frozen weight": (lambda x, b: F.bilinear(x, x.sin(), x.new_ones(3, 4, 4), b), {"b": (3,)}, (6, 4)),
    "bilinear, sequence first": (
        lambda x, w: F.bilinear(x.transpose(0, 1), x.cos().transpose(0, 1), w).transpose(0, 1), {"w": (3, 4, 4)}, (6, 4),
    ),
    "prelu": (F.prelu, {"w": (6,)}, (6, 4)),
    "prelu of one": (F.prelu, {"w": (1,)}, (6, 4)),
    "prelu of images": (F.prelu, {"w": (2,)}, (2, 3, 4)),
    "prelu of vectors": (torch.prelu, {"w": (4,)}, (4,)),
    "prelu, sequence first": (lambda x, w: F.prelu(x.transpose(0, 1), w).transpose(0, 1), {"w": (1,)}, (6, 4)),
}  # fmt: skip
SLOW = {
    "einsum, samples third", "einsum of three, a constant", "einsum of two parameters", "einsum of a parameter twice",
    "bmm, heads in front", "addbmm", "matmul of a vector, left", "matmul, samples last", "dot", "inner", "outer", "mv",
    "tensordot", "tensordot of two", "addmv", "chain_matmul",
}  # fmt: skip


def model_of(product: str) -> nn.Module:
    function, shapes, _ = PRODUCTS[product]
    return Calls(function, **{name: randn(*size) + 0.1 * i for i, (name, size) in enumerate(shapes.items())})


@pytest.mark.parametrize("product", PRODUCTS)
def test_products(product: str) -> None:
    for size in (1, B):
        for method in METHODS:
            batch = (randn(size, *PRODUCTS[product][2]),)
            assert inexact(model_of(product), batch, methods=method) == [], (size, method)


@pytest.mark.parametrize("product", [p for p in PRODUCTS if p not in SLOW])
def test_products_by_a_rule(product: str) -> None:
    assert slow_operations(model_of(product), (randn(B, *PRODUCTS[product][2]),)) == set()


@pytest.mark.parametrize("product", ["bilinear with a bias", "prelu", "bmm expanded", "matmul of heads"])
def test_no_samples(product: str) -> None:
    assert inexact(model_of(product), (randn(0, *PRODUCTS[product][2]),)) == []
