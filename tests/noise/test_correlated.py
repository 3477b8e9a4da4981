"""Correlated noise: C applied to it is independent noise of the size that was asked for, whatever the shapes.

Judged by :func:`faults` on N = 40,000 coordinates: the standard deviation of each row of C W and the correlation of each pair of
rows, whose standard errors are 1/sqrt(2N) and 1/sqrt(N). Bounds lie 6 of these away, so that the false-alarm rate is 2e-9 a figure
and below 1e-6 for one call.
"""

import copy
import pickle

import numpy as np
import pytest
import torch

from groupclip.errors import PrivacyViolation
from groupclip.noise.correlated import CorrelatedNoise, bytes_kept
from groupclip.noise.sources import InsecureNoise, SecureNoise
from groupclip.privacy.toeplitz import coefficients, inverse

N, STEPS, BANDS = 40_000, 12, 4
COLUMN = coefficients(STEPS, BANDS)


def faults(noise: np.ndarray, std: float, column=COLUMN) -> set[str]:
    """Which rows of ``C W`` aren't independent noise of this standard deviation, for W ``[steps, N]``."""
    whitened = np.stack([sum(c * noise[t - k] for k, c in enumerate(column) if t >= k) for t in range(len(noise))]) / std
    found = set()
    if abs(whitened.mean()) > 6 / np.sqrt(whitened.size):
        found.add("mean")
    if (abs(whitened.std(axis=1) - 1) > 6 / np.sqrt(2 * N)).any():
        found.add("size")
    correlated = np.corrcoef(whitened) - np.eye(len(noise))
    found |= {f"lag {lag}" for lag in range(1, len(noise)) if (abs(np.diagonal(correlated, lag)) > 6 / np.sqrt(N)).any()}
    return found


def drawn(correlated: CorrelatedNoise, steps: int, like: torch.Tensor, std: float = 0.7, source=None) -> np.ndarray:
    source = SecureNoise() if source is None else source
    correlated.prepare([like])
    return np.stack([correlated.draw(source, [std])[0].double().numpy().ravel().copy() for _ in range(steps)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_is_independent_noise_through_c(dtype):
    noise = drawn(CorrelatedNoise(COLUMN), STEPS, torch.zeros(200, N // 200, dtype=dtype))
    assert faults(noise, 0.7) == set()


def test_white_noise_is_rejected():
    white = np.random.default_rng(0).normal(0, 0.7, (STEPS, N))
    assert {"lag 1", "size"} & faults(white, 0.7)


def test_a_wrong_lag_is_rejected():
    shifted = CorrelatedNoise((COLUMN[0], 0.0, *COLUMN[1:]))
    assert "lag 1" in faults(drawn(shifted, STEPS, torch.zeros(N)), 0.7)


def test_coefficients_of_another_run_are_rejected():
    other = CorrelatedNoise(coefficients(4 * STEPS, BANDS + 1))
    assert faults(drawn(other, STEPS, torch.zeros(N)), 0.7)


def test_too_little_noise_is_rejected():
    assert faults(drawn(CorrelatedNoise(COLUMN), STEPS, torch.zeros(N), std=0.67), 0.7) == {"size"}


def test_begun_anew_it_is_independent_of_all_before():
    correlated, like = CorrelatedNoise(COLUMN), torch.zeros(N)
    first = drawn(correlated, 6, like)
    correlated.begin_anew()
    second = drawn(correlated, 6, like)
    assert faults(second, 0.7) == set() and faults(first, 0.7) == set()
    between = np.corrcoef(np.concatenate([first, second]))[:6, 6:]
    assert (abs(between) < 6 / np.sqrt(N)).all()


def test_reuse_after_a_resume_is_rejected():
    """The twin: a second stretch under the key of the first has the same noise, and the difference of two releases has none."""
    first = drawn(CorrelatedNoise(COLUMN), 6, torch.zeros(N), source=InsecureNoise(3))
    again = drawn(CorrelatedNoise(COLUMN), 6, torch.zeros(N), source=InsecureNoise(3))
    assert (abs(np.corrcoef(np.concatenate([first, again]))[:6, 6:]) > 6 / np.sqrt(N)).any()


def test_a_stretch_that_goes_on_as_if_it_were_new_is_rejected():
    """The twin: the buffers of the first stretch are kept, so the second isn't what C says."""
    correlated, like = CorrelatedNoise(COLUMN), torch.zeros(N)
    drawn(correlated, 6, like)
    assert faults(drawn(correlated, 6, like), 0.7)


def test_each_tensor_has_its_own_size():
    correlated = CorrelatedNoise(COLUMN)
    correlated.prepare([torch.zeros(N), torch.zeros(N, dtype=torch.float64)])
    source = SecureNoise()
    pairs = [[t.double().numpy().copy() for t in correlated.draw(source, [0.5, 2.0])] for _ in range(STEPS)]
    one, other = (np.stack([pair[i] for pair in pairs]) for i in (0, 1))
    assert faults(one, 0.5) == set() and faults(other, 2.0) == set()
    assert (abs(np.corrcoef(np.concatenate([one, other]))[:STEPS, STEPS:]) < 6 / np.sqrt(N)).all()


def test_is_the_inverse_of_c_to_the_last_bits():
    """Against ``C^-1 Z`` in float64, from the same draws."""
    like = torch.zeros(100, dtype=torch.float64)
    noise = drawn(CorrelatedNoise(COLUMN), 40, like, std=1.0, source=InsecureNoise(1))
    source, z = InsecureNoise(1), []
    for _ in range(40):
        fresh = torch.zeros(100, dtype=torch.float64)
        source.add_(fresh, 1.0)
        z.append(fresh.numpy())
    shares = inverse(COLUMN, 40)
    expected = np.stack([sum(shares[k] * z[t - k] for k in range(t + 1)) for t in range(40)])
    assert np.abs(noise - expected).max() < 1e-12


@pytest.mark.parametrize(("dtype", "each"), [(torch.float32, 4), (torch.float64, 8), (torch.float16, 4), (torch.bfloat16, 4)])
def test_what_is_kept_is_counted_to_the_byte(dtype, each):
    correlated = CorrelatedNoise(COLUMN)
    assert correlated.nbytes == 0
    correlated.prepare([torch.zeros(10, 3, dtype=dtype), torch.zeros(7, dtype=dtype)])
    assert correlated.nbytes == (BANDS - 1) * 37 * each == bytes_kept(37, dtype, BANDS)
    correlated.draw(SecureNoise(), [1.0, 1.0])
    assert correlated.nbytes == bytes_kept(37, dtype, BANDS)


def test_a_draw_that_fails_is_told():
    class Failing:
        secure = True

        def add_(self, tensor: torch.Tensor, std: float) -> None:
            raise OSError("no randomness")

    correlated = CorrelatedNoise(COLUMN)
    correlated.prepare([torch.zeros(5)])
    assert correlated.is_whole
    with pytest.raises(OSError, match="no randomness"):
        correlated.draw(Failing(), [1.0])
    assert not correlated.is_whole
    correlated.begin_anew()
    assert correlated.is_whole


def test_cannot_be_copied_or_shown():
    correlated = CorrelatedNoise(COLUMN)
    correlated.prepare([torch.zeros(5)])
    correlated.draw(SecureNoise(), [1.0])
    for forbidden in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(PrivacyViolation, match="can't be copied"):
            forbidden(correlated)
    assert repr(correlated) == "CorrelatedNoise(bands=4)"


@pytest.mark.parametrize(
    "other",
    [
        [torch.zeros(3, dtype=torch.float64), torch.zeros(2)],
        [torch.zeros(4), torch.zeros(2)],
        [torch.zeros(3, device="meta"), torch.zeros(2)],
        [torch.zeros(3)],
    ],
    ids=["type", "shape", "device", "number"],
)
def test_room_is_made_anew_where_tensors_are_other_ones(other):
    like = [torch.zeros(3), torch.zeros(2)]
    noise = CorrelatedNoise(COLUMN)
    assert not noise.fits(like)
    noise.prepare(like)
    noise.draw(InsecureNoise(0), [1.0, 1.0])
    assert noise.fits(like) and noise.fits([torch.zeros(3, dtype=torch.bfloat16), torch.zeros(2)])  # kept in single
    assert not noise.fits(other)
    noise.prepare(like)
    assert any(float(tensor.abs().sum()) > 0 for kept in noise._before for tensor in kept)  # what fits stays
    noise.prepare(other)
    assert noise.fits(other) and not noise.fits(like)
    assert all(float(t.abs().sum()) == 0 for kept in noise._before for t in kept if t.device.type != "meta")
