"""Clip factors: formulas by hand, and the bound that the noise relies on, for every norm that there is."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from groupclip.clipping.functions import (
    Abadi,
    Automatic,
    ClipFunction,
    FlatNormalised,
    Global,
    bounded_factors,
    clip_function,
    shortened,
)
from groupclip.persample.norms import accumulation_dtype
from groupclip.persample.outer import Outer

NORMS = torch.tensor([0.0, 0.5, 2.0, 8.0], dtype=torch.float64)
R = 2.0
BY_HAND = {
    "automatic": [2 / 0.01, 2 / 0.51, 2 / 2.01, 2 / 8.01],
    "abadi": [1.0, 1.0, 1.0, 0.25],
    "flat-normalised": [0.0, 4.0, 1.0, 0.25],
    "global": [1.0, 1.0, 1.0, 0.0],
}
NAMES = sorted(BY_HAND)
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("name", NAMES)
def test_factors_by_hand(name: str) -> None:
    factors = clip_function(name).factors(NORMS, R)
    assert factors.tolist() == pytest.approx(BY_HAND[name], rel=1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_bounding_changes_nothing_in_float64(name: str) -> None:
    assert bounded_factors(clip_function(name), NORMS, R, torch.float64).tolist() == pytest.approx(
        BY_HAND[name], rel=1e-14
    )


def test_gamma_is_the_users() -> None:
    assert Automatic(gamma=0.5).factors(NORMS, R).tolist() == pytest.approx([4, 2, 0.8, 2 / 8.5], rel=1e-14)


@pytest.mark.parametrize("gamma", [0.0, -1.0, math.inf, math.nan])
def test_gamma_must_be_positive(gamma: float) -> None:
    with pytest.raises(ValueError, match=r"gamma=.* must be positive and finite"):
        Automatic(gamma=gamma)


def test_names_and_objects() -> None:
    assert [type(clip_function(name)) for name in NAMES] == [Abadi, Automatic, FlatNormalised, Global]
    own = Automatic(gamma=1.0)
    assert clip_function(own) is own
    with pytest.raises(
        ValueError, match=r"clip='adabi' is unknown; choose one of abadi, automatic, flat-normalised, global"
    ):
        clip_function("adabi")
    with pytest.raises(TypeError, match=r"clip=3 must be a name or an object of groupclip.clipping"):
        clip_function(3)  # pyright: ignore[reportArgumentType]


# ------------------------------------------------------------------ the bound, over all floats

# A norm is the root of a sum of squares that is finite: below 2^512 in float64, below 2^64 in float32.
TINY = [0.0, math.nan, math.inf, 5e-324, 1e-310, 1e-45, 1e-38]
wide = st.one_of(st.floats(0.0, 2.0**512), st.sampled_from(TINY))
narrow = st.one_of(st.floats(0.0, 2.0**64, width=32), st.sampled_from(TINY))


def excess(norms: Tensor, factors: Tensor, threshold: float) -> float:
    """The largest ``norm * factor / R - 1`` over the finite norms, worked out without rounding."""
    pairs = [(n, f) for n, f in zip(norms.tolist(), factors.tolist(), strict=True) if math.isfinite(n)]
    return max((float(Fraction(n) * Fraction(f) / Fraction(threshold)) - 1 for n, f in pairs), default=-1.0)


@settings(max_examples=300)
@given(st.sampled_from(NAMES), st.lists(wide, min_size=1, max_size=8), st.floats(1e-30, 1e30))
@example("flat-normalised", [5e-324, 2.0**512], 1e-30)
def test_no_factor_lets_a_norm_exceed_the_threshold_in_float64(name: str, norms: list[float], threshold: float) -> None:
    """Up to the last bit of the quotient."""
    tensor = torch.tensor(norms, dtype=torch.float64)
    factors = bounded_factors(clip_function(name), tensor, threshold, torch.float64)
    assert torch.isfinite(factors).all() and (factors >= 0).all()
    assert excess(tensor, factors, threshold) <= 2.0**-52
    assert (factors[~torch.isfinite(tensor)] == 0).all()


@settings(max_examples=300)
@given(
    st.sampled_from(NAMES),
    st.lists(narrow, min_size=1, max_size=8),
    st.floats(1e-6, 1e6),
    st.sampled_from(DTYPES[1:]),
)
def test_no_factor_lets_a_norm_exceed_the_threshold_in_float32(
    name: str, norms: list[float], threshold: float, dtype: torch.dtype
) -> None:
    """Strictly: the room for rounding is taken off the factor."""
    tensor = torch.tensor(norms, dtype=torch.float32)
    factors = bounded_factors(clip_function(name), tensor, threshold, dtype)
    assert torch.isfinite(factors).all() and (factors >= 0).all()
    assert excess(tensor, factors, threshold) <= 0
    assert (factors[~torch.isfinite(tensor)] == 0).all()


class Careless(ClipFunction):
    """A user's own function that breaks its promise."""

    name = "careless"

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def factors(self, norms: Tensor, threshold: float) -> Tensor:
        return torch.tensor(self.values, dtype=norms.dtype)


def test_a_careless_function_is_held_to_the_bound() -> None:
    norms = torch.tensor([1.0, 4.0, 1.0, 1.0, 0.0, 2.0], dtype=torch.float64)
    clip = Careless([100.0, 100.0, math.nan, -3.0, math.inf, 0.1])
    got = bounded_factors(clip, norms, R, torch.float64)
    # Two capped at R / norm; a NaN, a negative one, an infinite one at norm zero dropped; one as it is.
    assert got.tolist() == [2.0, 0.5, 0.0, 0.0, 0.0, 0.1]


@pytest.mark.parametrize("name", NAMES)
def test_a_norm_of_zero_has_the_factor_zero(name: str) -> None:
    """There may be terms that cancel, or squares that are too small; and a sample that isn't there stays away."""
    norms = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    factors = bounded_factors(clip_function(name), norms, R, torch.float64)
    for room in (0.0, 1e-19, torch.tensor([0.0, 1e-19, 1e-19], dtype=torch.float64)):
        got = shortened(factors, norms, room)
        assert got[:2].tolist() == [0.0, 0.0]
        assert got[2].item() == pytest.approx(factors[2].item(), rel=1e-14)


@settings(max_examples=200)
@given(st.sampled_from(NAMES), st.floats(0.0, 2.0**512), st.floats(0.0, 2.0**500), st.sampled_from(DTYPES[:2]))
@example("flat-normalised", 1e-25, 1e-19, torch.float32)
@example("flat-normalised", 1.171432456864447e-162, 2.0**490, torch.float64)
def test_what_norms_may_lack_is_counted(name: str, norm: float, room: float, dtype: torch.dtype) -> None:
    """Whatever lies between the norm and the norm with its room stays below the threshold."""
    norms = torch.tensor([norm], dtype=dtype)
    factors = shortened(bounded_factors(clip_function(name), norms, R, dtype), norms, room)
    assert torch.isfinite(factors).all() and (factors >= 0).all()
    if math.isfinite(norms.item()):
        longest = Fraction(norms.item()) + Fraction(room)
        assert longest * Fraction(factors.item()) <= Fraction(R) * (1 + Fraction(1, 10**13))


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_a_factor_without_all_its_bits_is_zero(dtype: torch.dtype) -> None:
    """Rounded up, 1.6e-45 would be 2.8e-45."""
    tiny = torch.finfo(dtype).tiny
    got = shortened(torch.tensor([tiny / 2, tiny * 4], dtype=dtype), torch.ones(2, dtype=dtype), 0.0)
    assert got[0] == 0 and got[1] > 0


def kept(gradients: Tensor, factors: Tensor) -> Tensor:
    """Norms ``[B]`` of what each sample alone adds to the sum, in the dtype of the parameter."""
    samples = Outer(gradients.new_ones(len(gradients), 1, 1), gradients.unsqueeze(1))
    one_by_one = [samples.select(i).weighted_sum(factors[i]) for i in torch.arange(len(gradients)).unsqueeze(1)]
    return torch.stack([total.to(gradients.dtype).double().norm() for total in one_by_one])


@pytest.mark.parametrize("dtype", DTYPES[:3])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_added_keeps_below_the_threshold(name: str, dtype: torch.dtype) -> None:
    """Factor, product and sum rounded to the dtype, for gradients of every size that the dtype has."""
    generator = torch.Generator().manual_seed(5)
    for exponent in range(-6, 5):
        gradients = (torch.randn(64, 50, generator=generator) * 10.0**exponent).to(dtype)
        norms = gradients.double().norm(dim=1).to(accumulation_dtype(dtype))
        factors = bounded_factors(clip_function(name), norms, 1.0, dtype)
        worst = kept(gradients, factors).max()
        assert worst <= 1 + 1e-15, f"norms of {norms.max():.1e}: {worst:.5f}"


def test_twin_without_the_room_for_rounding_the_bound_breaks() -> None:
    """The same check rejects factors R / norm as they are, in bfloat16."""
    gradients = torch.randn(64, 50, generator=torch.Generator().manual_seed(5)).bfloat16()
    assert kept(gradients, 1 / gradients.double().norm(dim=1).float()).max() > 1
