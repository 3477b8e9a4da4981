"""Sums of squares that are right at any length and in any precision, and the choice between the two forms."""

from __future__ import annotations

import math

import pytest
import torch

from groupclip.persample.norms import (
    CANCELLATION,
    GRAM,
    INSTANTIATED,
    accumulation_dtype,
    choose_method,
    gram_square_sums,
    square_sums,
)


def relative_error(got: torch.Tensor, exact: torch.Tensor) -> float:
    return ((got.double() - exact) / exact).abs().max().item()


def exact_square_sum(row: torch.Tensor) -> float:
    """In float64, a slice at a time so that little memory is needed."""
    return math.fsum(part.double().square().sum().item() for part in row.split(1 << 22))


def test_float32_is_right_at_forty_million_elements() -> None:
    """To 1e-6. The twin: torch's own norm is 2.7e-3 too small there on CPU, so samples would keep more than R."""
    row = torch.empty(1, 40_000_000).uniform_(generator=torch.Generator().manual_seed(3))
    exact = math.sqrt(exact_square_sum(row[0]))

    def right(norm: torch.Tensor) -> bool:
        return abs(norm.item() / exact - 1) <= 1e-6

    assert right(square_sums(row).sqrt())
    assert not right(torch.linalg.vector_norm(row))


@pytest.mark.parametrize("size", [0, 1, 7, 1 << 15, 1 << 16, (1 << 16) + 256, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 2_500_000])
def test_any_length_across_the_blocks(size: int) -> None:
    rows = torch.randn(2, size, generator=torch.Generator().manual_seed(size))
    exact = rows.double().square().sum(1)
    torch.testing.assert_close(square_sums(rows).double(), exact, rtol=3e-7, atol=0)


@pytest.mark.parametrize("number", [1 / 3, 0.7, 1.1])
def test_equal_terms_whose_roundings_go_the_same_way(number: float) -> None:
    row = torch.full((2, 1 << 17), number)
    exact = row[0].double().square().sum()
    assert (square_sums(row).double() / exact - 1).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_long_rows_of_any_dtype(dtype: torch.dtype) -> None:
    rows = torch.randn(2, 1 << 17, generator=torch.Generator().manual_seed(0)).to(dtype)
    got = square_sums(rows)
    assert got.dtype == accumulation_dtype(dtype)
    torch.testing.assert_close(got.double(), rows.double().square().sum(1), rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", [(3,), (3, 4), (3, 2, 5), (3, 1, 1, 2), (0, 4), (3, 0)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    want = x.reshape(shape[0], math.prod(shape[1:])).square().sum(1)
    torch.testing.assert_close(square_sums(x), want, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened(dtype: torch.dtype) -> None:
    """float16 squares above 65,504 are infinite, and sums in bfloat16 stand still after 256 equal terms."""
    x = torch.full((1, 5000), 300.0, dtype=dtype)
    got = square_sums(x)
    assert got.dtype == torch.float32
    assert got.item() == pytest.approx(5000 * float(x[0, 0]) ** 2, rel=1e-6)


def test_accumulation_dtype_is_never_below_float32() -> None:
    assert [accumulation_dtype(d) for d in (torch.float64, torch.float32, torch.bfloat16, torch.float16)] == [
        torch.float64,
        torch.float32,
        torch.float32,
        torch.float32,
    ]


def test_non_finite_rows_stay_apart() -> None:
    x = torch.tensor([[1.0, 2.0], [math.nan, 1.0], [math.inf, 1.0], [1e30, 0.0]])
    assert square_sums(x).isfinite().tolist() == [True, False, False, False]
    assert square_sums(x)[0].item() == 5.0


# ------------------------------------------------------------------ Gram matrices


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gram_norms_are_those_of_the_gradient(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    a, g = (
        torch.randn(4, 6, 5, generator=generator, dtype=dtype),
        torch.randn(4, 6, 3, generator=generator, dtype=dtype),
    )
    squares, ratio, _ = gram_square_sums(a, g)
    exact = torch.bmm(g.double().mT, a.double()).square().sum((1, 2))
    assert relative_error(squares, exact) < (1e-13 if dtype == torch.float64 else 1e-5)
    assert ((ratio > 0) & (ratio <= 1 + 1e-6)).all()


@pytest.mark.parametrize("positions", [0, 1, 95, 96, 97, 191, 192, 200, 385])
def test_strips_of_gram_matrices_are_as_good_as_the_whole(positions: int) -> None:
    generator = torch.Generator().manual_seed(0)
    a, g = (torch.randn(3, positions, n, generator=generator) + 0.2 for n in (7, 4))
    squares, ratio, _ = gram_square_sums(a, g)
    aa, gg = (torch.bmm(x.double(), x.double().mT) for x in (a, g))
    torch.testing.assert_close(squares.double(), (aa * gg).sum((1, 2)), rtol=1e-5, atol=0.0)
    lengths = (aa.square().sum((1, 2)) * gg.square().sum((1, 2))).sqrt()
    expected = (aa * gg).sum((1, 2)) / lengths if positions else torch.ones(3, dtype=torch.float64)
    torch.testing.assert_close(ratio.double(), expected, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("numbers", [1, 511, 512, 1023, 1024, 1025, 5000, (1 << 20) + 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_sums_of_squares_of_any_length(numbers: int, dtype: torch.dtype) -> None:
    x = torch.randn(2, numbers, generator=torch.Generator().manual_seed(0)).to(dtype)
    for rows in (x, x.t().contiguous().t()):
        torch.testing.assert_close(square_sums(rows).double(), x.double().square().sum(dim=1), rtol=1e-6, atol=0.0)


def test_half_precision_gram_norms_are_widened() -> None:
    """With entries in bfloat16 the products would be wrong by their own size, even negative."""
    generator = torch.Generator().manual_seed(1)
    a, g = (torch.randn(8, 64, 16, generator=generator).bfloat16() for _ in range(2))
    squares, _, _ = gram_square_sums(a, g)
    exact = torch.bmm(g.double().mT, a.double()).square().sum((1, 2))
    assert squares.dtype == torch.float32 and relative_error(squares, exact) < 1e-4


def test_cancellation_is_told() -> None:
    """Two positions whose gradients are nearly opposite: the ratio says that little is left."""
    a = torch.tensor([[[1.0, 0.0], [1.0, 1e-5]], [[1.0, 0.0], [1.0, 0.0]]])
    g = torch.tensor([[[1.0], [-1.0]], [[1.0], [1.0]]])
    _, ratio, _ = gram_square_sums(a, g)
    assert ratio[0] < CANCELLATION < ratio[1]


def test_a_zero_gradient_is_no_cancellation() -> None:
    squares, ratio, _ = gram_square_sums(torch.zeros(1, 3, 2), torch.randn(1, 3, 2))
    assert squares.item() == 0 and ratio.item() == 1


@pytest.mark.parametrize(
    ("positions", "inputs", "outputs", "samples", "kept"),
    [
        (1, 10, 10, 4, GRAM),  # keeps 20 numbers a sample rather than 100
        (4, 10, 10, 656, GRAM),  # 80
        (5, 10, 10, 656, INSTANTIATED),  # 100 either way: instantiated costs less time
        (197, 384, 1152, 1, GRAM),  # ViT-Small's qkv: 302,592 rather than 442,368
        (197, 384, 384, 8, INSTANTIATED),  # its proj: 147,456 rather than 151,296
        (3136, 64, 64, 8, INSTANTIATED),  # an early convolution
        (128, 768, 50257, 1, GRAM),  # a language model's head
        (4, 10, 10, 655, INSTANTIATED),  # few numbers in all
        (16, 64, 128, 8, INSTANTIATED),  # 8,192 rather than 3,072 a sample
        (16, 64, 128, 9, GRAM),
        (10, 64, 128, 1, GRAM),  # more than four times 1,920
    ],
)
def test_the_form_that_keeps_less_or_is_quicker_where_few_are_kept(
    positions: int, inputs: int, outputs: int, samples: int, kept: str
) -> None:
    assert choose_method(positions, inputs, outputs, samples) == kept
