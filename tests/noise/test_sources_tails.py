"""The tails of the noise go on where the uniforms of float32 generators end.

A tail that is cut makes outputs possible under one data set and impossible under its neighbour. Plain
counting needs billions of draws (the slow tests); the fast ones draw under the condition that the draw
is a far one. Every check has a twin that it must reject.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from groupclip.noise import single
from groupclip.noise.boxmuller import InNumPy, InTorch
from groupclip.noise.keystream import Keystream, new_key
from groupclip.noise.single import InSingle
from groupclip.noise.sources import SecureNoise


class Conditioned:
    """A keystream given that the first ``bits`` bits of every ``u`` are zero: |z| is large there."""

    def __init__(self, bits: int) -> None:
        self._stream, self._bits = Keystream(new_key(), "test"), bits

    def fill(self, words: np.ndarray) -> None:
        self._stream.fill(words)
        words[: len(words) // 2] >>= self._bits


class ConditionedSingle(InSingle):
    """Float32 normals given the same; what the 31 bits of their words don't hold is taken off the further ones."""

    def given(self, bits: int) -> None:
        Keystream(new_key(), "test").fill(self.words)
        self._bits = bits
        radii = self.words[-len(self._spare) :][: len(self._spare) // 2]
        np.bitwise_and(radii, 2**31 - 1, out=radii)
        radii >>= min(bits, 31)

    def normals(self, count: int, std: float) -> np.ndarray:
        taken, words = max(self._bits - 31, 0), Keystream.words

        def conditioned(stream: Keystream, count: int) -> np.ndarray:
            drawn = words(stream, count)
            return (drawn >> np.uint64(32 + taken) << np.uint64(32)) | (drawn & np.uint64(2**32 - 1))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Keystream, "words", conditioned)
            return super().normals(count, std)


class Coarse:
    """Box and Muller's method with uniforms of 24 bits, as a float32 generator has them."""

    def __init__(self, count: int) -> None:
        self.words = np.empty(count, dtype=np.int64)

    def normals(self, count: int, std: float) -> np.ndarray:
        v, w = self.words[: count // 2], self.words[count // 2 :]
        u = ((np.abs(v) >> 39) + 1) * 2.0**-24
        radius, angle = std * np.sqrt(-2 * np.log(u)), w * (math.pi * 2.0**-63)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])


def tail_is_right(workspace, bits: int, limit: float) -> bool:
    """Whether |z| > limit comes up as often as it should, among draws that have u < 2^-bits.

    As u < 2^-bits whenever |z| > limit, the rate is P(|z| > limit) 2^bits. False-alarm rate below 1e-8
    (6 standard errors of a Poisson count of several hundred).
    """
    assert limit > math.sqrt(2 * bits * math.log(2))
    n = 200_000
    expected = n * 2 * stats.norm.sf(limit) * 2.0**bits
    assert expected > 200
    drawn = workspace(n)
    if isinstance(drawn, ConditionedSingle):
        drawn.given(bits)
    else:
        Conditioned(bits).fill(drawn.words)
    count = int((abs(drawn.normals(n, 1.0)) > limit).sum())
    return bool(abs(count - expected) < 6 * math.sqrt(expected))


@pytest.mark.parametrize(("bits", "limit"), [(20, 5.77), (40, 8.0)])
@pytest.mark.parametrize("workspace", [InNumPy, InTorch, ConditionedSingle])
def test_tails_go_on_where_float32_generators_stop(bits, limit, workspace):
    assert tail_is_right(workspace, bits, limit)
    assert not tail_is_right(Coarse, bits, limit)


@pytest.mark.parametrize(("bits", "limit"), [(29, 6.6), (40, 8.0)])
def test_twin_of_float32_without_further_bits_has_no_tails(bits, limit, monkeypatch):
    assert tail_is_right(ConditionedSingle, bits, limit)
    monkeypatch.setattr(single, "_END", 0)
    assert not tail_is_right(ConditionedSingle, bits, limit)


def exceedances(add, limit: float = 5.77, draws: int = 2_500_000_000) -> int:
    """How many of ``draws`` standard normals lie beyond ``limit``; 19.8 are expected at the defaults."""
    block, count = torch.empty(5_000_000), 0
    for _ in range(draws // len(block)):
        add(block.zero_())
        count += int((block.abs() > limit).sum())
    return count


@pytest.mark.slow
def test_tails_by_plain_counting():
    """Poisson of mean 19.8: outside 3 to 48 with probability below 2e-6 (below 5e-7 on the low side)."""
    assert 3 <= exceedances(lambda block: SecureNoise().add_(block, 1.0)) <= 48


@pytest.mark.slow
def test_twin_float32_generator_has_no_tails():
    generator = torch.Generator().manual_seed(0)
    assert exceedances(lambda block: block.normal_(generator=generator)) < 3


@pytest.mark.parametrize("workspace", [InNumPy, InTorch])
def test_word_zero_and_extreme_words_give_finite_normals(workspace):
    extreme = workspace(8)
    extreme.words[:] = [0, -(2**63), 2**63 - 1, 1, 0, -(2**63), 2**63 - 1, 5]
    z = np.asarray(extreme.normals(8, 1.0))
    assert np.isfinite(z).all()
    assert z[0] == pytest.approx(math.sqrt(2 * 63 * math.log(2)))  # the farthest draw there can be: 9.35
    assert abs(z[[1, 2, 5, 6]]).max() < 1e-7  # u = 1
