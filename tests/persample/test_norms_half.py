"""Norms of half-precision gradients: squares that underflow or overflow in half precision are right all the same.

Below 2.4e-4 squares leave float16's range at its lower end, and above 256 at its upper one; bfloat16 keeps 8 bits of them.
"""

import pytest
import torch
from torch import Tensor

from groupclip.persample.norms import gram_square_sums, square_sums

SIZES = {"underflow": 1e-4, "usual": 1.0, "overflow": 3e2}
DTYPES = [torch.float16, torch.bfloat16]


def drawn(*shape: int, size: float, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (size * (0.5 + torch.rand(shape, generator=generator))).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("length", [7, 1_000, 128 * 1_024], ids=["short", "middling", "in stretches"])
def test_sums_of_squares(dtype: torch.dtype, size: float, length: int) -> None:
    x = drawn(3, length, size=size, dtype=dtype)
    found = square_sums(x)
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), x.double().square().sum(1), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_gram_matrices(dtype: torch.dtype, size: float) -> None:
    a, g = drawn(3, 6, 20, size=size, dtype=dtype), drawn(3, 6, 9, size=size, dtype=dtype)
    found, _, _ = gram_square_sums(a, g)
    true = torch.einsum("btd,btp->bpd", a.double(), g.double()).square().sum((1, 2))
    assert torch.allclose(found.double(), true, rtol=1e-5, atol=0)


@pytest.mark.parametrize("size", [SIZES["underflow"], SIZES["overflow"]], ids=["underflow", "overflow"])
def test_twin_squares_in_half_precision_are_wrong(size: float) -> None:
    x = drawn(3, 7, size=size, dtype=torch.float16)
    wrong = x.square().float().sum(1)
    assert not torch.allclose(wrong.double(), x.double().square().sum(1), rtol=0.1, atol=0)
