"""The noise on a grid: exactness against 400 digits, law, and what comes out.

False-alarm rates: chi-square and Kolmogorov-Smirnov 1e-6 each, moments 6 standard errors (2e-9). Keys are fixed.
"""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from groupclip.errors import PrivacyViolation
from groupclip.noise import grid as hardened
from groupclip.noise.grid import HardenedNoise, exactly, grid, planned_for, rounding

KEY = bytes(range(32))
WORD, MORE = st.integers(0, 2**64 - 1), st.integers(0, 2**192 - 1)


def truth(v: int, w: int, more_v: int, more_w: int, std: float) -> tuple[int, int]:
    with mpmath.workdps(400):
        u, t = ((mpmath.mpf(word * 2**192 + more) + 0.5) / 2**256 for word, more in ((v, more_v), (w, more_w)))
        radius = mpmath.sqrt(-2 * mpmath.log(u)) * mpmath.mpf(std)
        return int(mpmath.nint(radius * mpmath.cospi(2 * t))), int(mpmath.nint(radius * mpmath.sinpi(2 * t)))


@settings(max_examples=60, deadline=None)
@given(v=WORD, w=WORD, more_v=MORE, more_w=MORE, std=st.floats(2.0**20, 2.0**21))
def test_decisions_against_many_digits(v, w, more_v, more_w, std):
    assert exactly(v, w, more_v, more_w, std) == truth(v, w, more_v, more_w, std)


@pytest.mark.parametrize("v", [0, 1, 2**43, 2**63, 2**64 - 1])
@pytest.mark.parametrize("w", [0, 2**61, 2**62, 2**63, 2**64 - 1])
def test_decisions_at_the_ends(v, w):
    assert exactly(v, w, 1, 1, 1.3 * 2**20) == truth(v, w, 1, 1, 1.3 * 2**20)


def floats_err(words: np.ndarray) -> float:
    """Largest distance of float64's draws from the truth, among pairs that count as sure."""
    v, w = words.reshape(2, -1)
    found, sure = hardened.nearly(v, w)
    worst = 0.0
    for pair in np.flatnonzero(sure).tolist():
        with mpmath.workdps(60):
            radius = mpmath.sqrt(-2 * mpmath.log((mpmath.mpf(int(v[pair])) + 0.5) / 2**64))
            turn = 2 * (mpmath.mpf(int(w[pair])) + 0.5) / 2**64
            for near, far in zip(found[:, pair].tolist(), (mpmath.cospi, mpmath.sinpi), strict=True):
                worst = max(worst, abs(float(near - radius * far(turn))))
    return worst


def test_float64_is_as_exact_as_the_doubt_assumes():
    rng = np.random.default_rng(0)
    hard = np.array([2**43, 2**43 + 1, 2**64 - 2**45, 2**64 - 2**46, 2**50], dtype=np.uint64)  # few bits, or near 1
    v = np.concatenate([rng.integers(2**43, 2**64, 1_500, dtype=np.uint64), np.repeat(hard, 100)])
    w = rng.integers(0, 2**64, len(v), dtype=np.uint64)
    w[:600] = np.array([2**62, 2**63, 3 * 2**62], dtype=np.uint64).repeat(200) + rng.integers(0, 2**20, 600, dtype=np.uint64)
    assert floats_err(np.concatenate([v, w])) < hardened._DOUBT


def test_pairs_that_float64_does_not_know_are_not_sure():
    v = np.array([0, 1, 2**43 - 1, 2**43, 2**64 - 2**45, 2**64 - 2**44, 2**64 - 1], dtype=np.uint64)
    assert hardened.nearly(v, v)[1].tolist() == [False, False, False, True, True, False, False]


def test_draws_in_doubt_are_decided(monkeypatch):
    """With all draws in doubt the noise is the same law; the decisions are really used."""
    monkeypatch.setattr(hardened, "_DOUBT", 1.0)
    source = HardenedNoise(KEY)
    found = source._draw(400, 1.5 * 2**20)
    assert stats.kstest(found / (1.5 * 2**20), "norm").pvalue > 1e-6
    monkeypatch.setattr(hardened, "exactly", lambda *_: (7.0, 7.0))
    assert (HardenedNoise(KEY)._draw(400, 1.5 * 2**20) == 7.0).all()


@pytest.mark.parametrize("std", [1.0, 0.37, 3e-4, 5e3])
def test_the_law(std):
    noise = torch.zeros(200_001, dtype=torch.float64)
    HardenedNoise(KEY).add_(noise, std)
    z = noise.numpy() / std
    assert stats.kstest(z, "norm").pvalue > 1e-6
    assert abs(z.mean()) < 6 / math.sqrt(len(z)) and abs(z.std() - 1) < 6 / math.sqrt(2 * len(z))
    assert abs(np.corrcoef(z[:100_000], z[100_000:200_000])[0, 1]) < 6 / math.sqrt(100_000)
    assert np.abs(z).max() > 4
    # the twins: 5 % less noise, and noise cut at three standard deviations
    assert stats.kstest(z * 0.95, "norm").pvalue < 1e-6
    assert stats.kstest(z[np.abs(z) < 2.5], "norm").pvalue < 1e-6


def test_all_that_comes_out_lies_on_the_grid_and_low_bits_tell_nothing():
    secret = torch.randn(30_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    out = secret.clone()
    HardenedNoise(KEY).add_(out, 1.0)
    steps = out / grid(1.0)
    assert torch.equal(steps, steps.round())
    residue = np.bincount(steps.long().numpy() % 16, minlength=16)
    assert stats.chisquare(residue).pvalue > 1e-6
    # the twin: plain addition leaves bits below the grid, which differ with the secret
    plain = (secret + torch.randn(30_000, dtype=torch.float64)) / grid(1.0)
    assert not torch.equal(plain, plain.round())


def test_it_adds_to_the_rounded_sum():
    x = torch.linspace(-3, 3, 999, dtype=torch.float64)
    added = x.clone()
    HardenedNoise(KEY).add_(added, 2.0)
    noise = torch.zeros(999, dtype=torch.float64)
    HardenedNoise(KEY).add_(noise, 2.0)
    unit = grid(2.0)
    assert torch.equal(added - noise, (x / unit).round() * unit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes_and_strides(dtype):
    x = torch.zeros(300, 200, dtype=dtype).t()
    HardenedNoise(KEY).add_(x, 0.5)
    assert x.dtype == dtype and abs(float(x.double().std()) - 0.5) < 0.01


def test_the_price_of_rounding():
    """Neighbours' sums, rounded, are further apart by one grid a coordinate at most."""
    rng = np.random.default_rng(0)
    std, size = 0.7, 1_000
    for _ in range(50):
        one = rng.normal(size=size)
        step = rng.normal(size=size)
        other = one + step / np.linalg.norm(step)
        apart = np.linalg.norm(np.rint(one / grid(std)) - np.rint(other / grid(std))) * grid(std)
        assert apart <= 1 + rounding(size) * std
    assert 1 / (1 / planned_for(1.0, 10**6) + rounding(10**6)) == pytest.approx(1.0)
    assert planned_for(1.0, 10**6) == pytest.approx(1.00095, abs=1e-5)
    with pytest.raises(ValueError, match=r"noise_multiplier=1e\+06 on 1,000,000 coordinates: the rounding"):
        planned_for(1e6, 10**6)


@pytest.mark.parametrize("std", [1e-30, 0.3, 1.0, 1.999, 2.0, 1e20])
def test_the_grid_is_a_power_of_two(std):
    assert math.frexp(grid(std))[0] == 0.5 and 2**-21 < grid(std) / std <= 2**-20


def test_secrecy_and_refusals():
    source = HardenedNoise()
    assert repr(source) == "HardenedNoise()" and source.secure
    with pytest.raises(PrivacyViolation, match="can't be copied or pickled"):
        __import__("copy").copy(source)
    with pytest.raises(ValueError, match="a standard deviation is finite"):
        source.add_(torch.zeros(2), -1.0)
    other, one = torch.zeros(50), torch.zeros(50)
    HardenedNoise().add_(one, 1.0), HardenedNoise().add_(other, 1.0)
    assert not torch.equal(one, other)
