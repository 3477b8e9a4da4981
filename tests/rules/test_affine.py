"""Linear layers, matrix products in every form, and elementwise operations with parameters: exact."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from check_engine import inexact
from check_rules import METHODS, B, Calls, randn


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(B, 4), (B, 5, 4), (B, 2, 5, 4), (B, 2, 2, 2, 4), (B, 1, 4)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(shape: tuple[int, ...], bias: bool, method: str) -> None:
    """Any number of dimensions between sample and features; T = 1 is the closed form."""
    assert (
        inexact(nn.Sequential(nn.Linear(4, 6, bias), nn.GELU(), nn.Linear(6, 2)), (randn(*shape),), methods=method)
        == []
    )


FUNCTIONS: dict[str, tuple[Callable[..., Tensor], dict[str, tuple[int, ...]], tuple[int, ...]]] = {
    "x @ w": (lambda x, w: x @ w, {"w": (4, 5)}, (B, 6, 4)),
    "matmul": (torch.matmul, {"w": (4, 5)}, (B, 4)),
    "mm": (torch.mm, {"w": (4, 5)}, (B, 4)),
    "mm by names": (lambda x, w: torch.mm(input=x, mat2=w.t()), {"w": (5, 4)}, (B, 4)),
    "matmul by names": (lambda x, w: torch.matmul(input=x, other=w), {"w": (4, 5)}, (B, 4)),
    "mv by names": (lambda x, w: torch.stack([torch.mv(w, vec=row) for row in x]), {"w": (5, 4)}, (B, 4)),
    "x @ w.t()": (lambda x, w: x @ w.t(), {"w": (5, 4)}, (B, 6, 4)),
    "x @ w.mT": (lambda x, w: x @ w.mT, {"w": (5, 4)}, (B, 6, 4)),
    "w @ x": (lambda x, w: w @ x, {"w": (5, 6)}, (B, 6, 4)),
    "x @ vector": (lambda x, w: (x @ w).unsqueeze(-1), {"w": (4,)}, (B, 6, 4)),
    "x @ stacked": (lambda x, w: x.unsqueeze(1) @ w, {"w": (2, 4, 5)}, (B, 6, 4)),
    "bmm of an expanded weight": (lambda x, w: torch.bmm(x, w.expand(len(x), -1, -1)), {"w": (1, 4, 5)}, (B, 6, 4)),
    "addmm": (lambda x, b, w: torch.addmm(b, x, w), {"b": (5,), "w": (4, 5)}, (B, 4)),
    "addmm scaled": (lambda x, b, w: torch.addmm(b, x, w, beta=2, alpha=3), {"b": (5,), "w": (4, 5)}, (B, 4)),
    "conv1d of gpt-2": (
        lambda x, b, w: torch.addmm(b, x.view(-1, 4), w).view(*x.shape[:-1], 5), {"b": (5,), "w": (4, 5)}, (B, 6, 4),
    ),
    "baddbmm": (lambda x, b, w: torch.baddbmm(b, x, w.expand(len(x), 4, 5)), {"b": (1, 1, 5), "w": (1, 4, 5)}, (B, 6, 4)),
    "einsum": (lambda x, w: torch.einsum("btd,dhk->bhtk", x, w), {"w": (4, 2, 3)}, (B, 6, 4)),
    "bilinear": (lambda x, w: F.bilinear(x, x * 2, w), {"w": (3, 4, 4)}, (B, 6, 4)),
    "functional linear, keywords": (lambda x, w, b: F.linear(input=x, weight=w, bias=b), {"w": (5, 4), "b": (5,)}, (B, 4)),
    "low rank": (lambda x, a, b: x @ a.T @ b.T + F.linear(x, b @ a), {"a": (2, 4), "b": (4, 2)}, (B, 6, 4)),
    "weight standardised": (
        lambda x, w: F.linear(x, (w - w.mean(1, keepdim=True)) / (w.std(1, keepdim=True) + 1e-3)), {"w": (5, 4)}, (B, 4),
    ),
    "masked": (lambda x, w: F.linear(x, w.tril()), {"w": (4, 4)}, (B, 6, 4)),
    "transposed convolution": (lambda x, w: F.conv_transpose1d(x, w, stride=2), {"w": (6, 3, 2)}, (B, 6, 4)),
    "prelu": (F.prelu, {"w": (6,)}, (B, 6, 4)),
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_of_parameters(function: str, method: str) -> None:
    call, shapes, shape = FUNCTIONS[function]
    parameters = {name: randn(*size) + 0.1 * i for i, (name, size) in enumerate(shapes.items())}
    assert inexact(Calls(call, **parameters), (randn(*shape),), methods=method) == []


ELEMENTWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "x + w": lambda x, w: x + w,
    "w + x": lambda x, w: w + x,
    "x - w": lambda x, w: x - w,
    "w - x": lambda x, w: w - x,
    "x * w": lambda x, w: x * w,
    "x / w": lambda x, w: x / (2 + w.abs()),
    "w / x": lambda x, w: w / (2 + x.square()),
    "add alpha": lambda x, w: torch.add(x, w, alpha=3),
    "sub alpha": lambda x, w: torch.sub(w, x, alpha=3),
    "rsub": lambda x, w: torch.rsub(x, w),
    "mul method": lambda x, w: x.mul(w),
    "add method": lambda x, w: x.add(w, alpha=2),
    "add_": lambda x, w: (x * 1).add_(w),
    "+=": lambda x, w: _in_place(x * 1, w),
    "mul_": lambda x, w: (x * 1).mul_(w),
    "sub_": lambda x, w: (x * 1).sub_(w),
    "div_": lambda x, w: (x * 1).div_(2 + w.square()),
    "addcmul": lambda x, w: torch.addcmul(x, x, w),
    "lerp": lambda x, w: torch.lerp(x, w.expand_as(x), 0.3),
    "where": lambda x, w: torch.where(x > 0, x, w),
    "maximum": lambda x, w: torch.maximum(x, w),
    "pow": lambda x, w: (1 + x.square()) ** w,
}


def _in_place(x: Tensor, w: Tensor) -> Tensor:
    x += w
    return x


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shape", [(4,), (5, 4), (1, 5, 1), (5, 1), (1, 1, 4), ()], ids=str)
@pytest.mark.parametrize("operation", ELEMENTWISE)
def test_elementwise(operation: str, shape: tuple[int, ...]) -> None:
    """Every way that a parameter lines up with ``x [B, 5, 4]``; B = 5 and 4 are as long as its own dimensions."""
    for size in (B, 5, 4, 1):
        model = Calls(
            ELEMENTWISE[operation], w=torch.linspace(0.5, 1.5, max(1, int(torch.Size(shape).numel()))).view(shape)
        )
        assert inexact(model, (randn(size, 5, 4),), styles=("all-layer",)) == [], size
