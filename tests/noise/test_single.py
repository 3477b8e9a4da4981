"""Normals in float32 arithmetic are the exact ones, near 0 and in the tails as well."""

import math

import mpmath
import numpy as np
import pytest
import torch

from groupclip.noise import normals, single
from groupclip.noise.keystream import KEY_BYTES, Keystream, new_key
from groupclip.noise.normals import add_normals
from groupclip.noise.single import InSingle, bytes_for, suits

KEY = bytes(range(KEY_BYTES))
END = 2**21  # how near an end of its range a word is continued
EDGES = [0, 1, -1, 3, 2**20, -(2**30), 2**31 - 1, -(2**31), -(2**31) + 1, *(
    side * (middle + step) for side in (1, -1) for middle in (END, 2**31 - END) for step in (-1, 0, 1)
)]  # fmt: skip


def random_words(count: int) -> np.ndarray:
    return Keystream(new_key(), "test").words(count).view(np.int32)[:count]


def near_an_end(words: np.ndarray) -> np.ndarray:
    """Whether a word is as near to 0, to its least or to its largest value as asks for further bits."""
    at = np.abs(words.astype(np.int64))
    return (at < END) | (at > 2**31 - END) | (words == -END) | (words == 2**31 - END)


def uniforms(v: np.ndarray, w: np.ndarray) -> list[tuple[int, int]]:
    """The 64-bit words of each pair: with the further bits where a word is near an end, with the middle of them elsewhere."""
    rare = near_an_end(v) | near_an_end(w)
    more = np.full(len(v), (2**31 << 32) + 2**31, dtype=np.uint64)
    more[rare] = Keystream(KEY, "groupclip/noise/further bits").words(int(rare.sum()))
    return [
        ((int(a) << 32) + (int(m) >> 32), (int(b) << 32) + int(m) % 2**32) for a, b, m in zip(v, w, more, strict=True)
    ]


def exactly(v: int, w: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """The two normals of 64-bit words, in 60 digits."""
    with mpmath.workdps(60):
        radius = mpmath.sqrt(-2 * mpmath.log((v % 2**63 + mpmath.mpf("0.5")) / 2**63)) * (-1 if v < 0 else 1)
        angle = mpmath.pi * (w + mpmath.mpf("0.5")) / 2**64
        return radius * mpmath.cos(angle), radius * mpmath.sin(angle)


def drawn(v: np.ndarray, w: np.ndarray, std: float = 1.0) -> np.ndarray:
    """The normals of pairs of words, ``[2, pairs]``."""
    workspace = InSingle(2 * len(v))
    workspace.words[:] = np.concatenate([np.frombuffer(KEY, dtype=np.int32), v, w])
    return workspace.normals(2 * len(v), std).reshape(2, -1).astype(np.float64)


def errors(v: np.ndarray, w: np.ndarray) -> tuple[float, float]:
    """Over all pairs: the worst error in units of ``1 + |z|``; and, of those near an end, in units of ``|z|``."""
    found, rare = drawn(v, w), near_an_end(v) | near_an_end(w)
    worst = [0.0, 0.0]
    for got, words, few in zip(found.T, uniforms(v, w), rare, strict=True):
        for z, right in zip(got, exactly(*words), strict=True):
            error = abs(z - right) if math.isfinite(z) else mpmath.inf
            worst[0] = max(worst[0], float(error / (1 + abs(right))))
            if few:
                worst[1] = max(worst[1], float(error / abs(right)))
    return worst[0], worst[1]


ALL = np.array([(v, w) for v in EDGES for w in EDGES], dtype=np.int32).T


def test_normals_are_those_of_the_formula():
    """To 1e-6 of ``1 + |z|`` everywhere; near 0 and in the tails, to float32's rounding."""
    for v, w in (ALL, random_words(10_000).reshape(2, -1)):
        whole, rare = errors(v, w)
        assert whole < 1e-6
        assert rare < 2.0**-24 * 1.01


def test_twin_without_further_bits_is_seen(monkeypatch):
    monkeypatch.setattr(single, "_END", 0)
    whole, rare = errors(*ALL)
    assert whole > 1e-5
    assert rare > 1e-3


def test_twin_of_half_the_precision_is_seen(monkeypatch):
    monkeypatch.setattr(single, "_P1", np.float32(float(single._P1) * (1 + 1e-5)))
    assert errors(*random_words(2_000).reshape(2, -1))[0] > 1e-6


def test_no_normal_is_zero_or_infinite():
    """A coordinate of no noise would be the data's."""
    found = drawn(*ALL)
    assert np.isfinite(found).all()
    assert (found != 0).all()


def test_farthest_draw(monkeypatch):
    """All 63 bits are zero, and the angle is 0."""
    monkeypatch.setattr(Keystream, "words", lambda self, count: np.zeros(count, dtype=np.uint64))
    z = drawn(np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.int32))
    assert z[0, 0] == pytest.approx(math.sqrt(128 * math.log(2)), rel=1e-7)  # 9.42


@pytest.mark.parametrize("std", [2.0**-40, 1e-3, 250.0, 2.0**40])
def test_size_is_that_of_std(std):
    assert suits(std)
    v, w = random_words(2_000).reshape(2, -1)
    np.testing.assert_allclose(drawn(v, w, std) / std, drawn(v, w), rtol=3e-7)


def test_rounding_makes_no_noise_smaller():
    for number in (1 / 3, 2 / 3, 1e-20, 1e20, 8.0):
        assert number <= float(single._upwards(number)) <= number * (1 + 2.0**-23)


@pytest.mark.parametrize("std", [2.0**-41, 2.0**41, 1e-45])
def test_sizes_that_float32_does_not_hold_are_drawn_in_float64(std, monkeypatch):
    monkeypatch.setattr(InSingle, "normals", lambda *_: pytest.fail("drawn in float32"))
    assert not suits(std)
    add_normals([(torch.zeros(50_000), std)], Keystream(new_key(), "test"))


def test_few_coordinates_are_drawn_in_float64_as_they_are_elsewhere():
    """A small sum gets the noise of a float64 one from the same words, rounded once; a large one has its own way."""
    for count, alike in ((1, True), (16_384, True), (16_385, False)):
        single_sum, double_sum = torch.zeros(count), torch.zeros(count, dtype=torch.float64)
        add_normals([(single_sum, 3.0)], Keystream(KEY, "test"))
        add_normals([(double_sum, 3.0)], Keystream(KEY, "test"))
        assert torch.equal(single_sum, double_sum.float()) == alike


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_a_workspace_takes_what_is_said(count):
    workspace = InSingle(count)
    held = [value for value in vars(workspace).values() if isinstance(value, np.ndarray)]
    assert sum(one.nbytes for one in held) == bytes_for(count)
    assert workspace.needed(count).nbytes == KEY_BYTES + 4 * (count + count % 2)


def test_further_bits_are_never_those_of_another_chunk(monkeypatch):
    """Every chunk has a key of its own, from the stream: it is 256 bits of it that nothing else is made of."""
    keys, make = [], single.Keystream

    def noted(key: bytes, label: str) -> Keystream:
        keys.append(key)
        return make(key, label)

    monkeypatch.setattr(single, "Keystream", noted)
    monkeypatch.setattr(normals, "SINGLE_CHUNK", 5_000)
    stream = Keystream(KEY, "test")
    for _ in range(2):
        add_normals([(torch.zeros(50_000), 1.0)], stream)
    assert len(keys) == len(set(keys)) == 20
    assert keys[0] == Keystream(KEY, "test").words(4).tobytes()
