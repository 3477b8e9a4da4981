"""Theorem 2: thresholds that clip alike are found where they exist, and witnesses where they don't."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from groupclip.clipping.functions import Automatic, clip_function
from groupclip.theory import finer_thresholds


def factors(clip, norms, threshold):
    return clip_function(clip).factors(torch.as_tensor(norms), threshold).numpy()


def coarse_factors(clip, norms, R):
    return factors(clip, np.linalg.norm(norms, axis=1), R)


NORMS = arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 3)), elements=st.floats(0.01, 10))


@settings(deadline=None)
@given(NORMS, st.floats(0.1, 20), st.sampled_from(["abadi", "automatic"]))
def test_what_is_found_clips_alike_and_a_misfit_is_one(norms, R, clip):
    found = finer_thresholds(norms, [0] * norms.shape[1], R, clip=clip)
    whole = coarse_factors(clip, norms, R)
    assert (found.thresholds is None) == (found.misfit is not None)
    if found.thresholds is not None:
        for m, threshold in enumerate(found.thresholds):
            assert factors(clip, norms[:, m], threshold) == pytest.approx(whole, rel=1e-9)
        return
    # no threshold serves both samples: what one needs gives the other a factor that isn't its own
    pair, n = [found.misfit.sample, found.misfit.other], norms[:, found.misfit.group]
    assert factors(clip, n[pair[:1]], found.misfit.threshold) == pytest.approx(whole[pair[:1]], rel=1e-9)
    assert factors(clip, n[pair[1:]], found.misfit.threshold) != pytest.approx(whole[pair[1:]], rel=1e-13)


@settings(deadline=None)
@given(NORMS, st.floats(0.1, 20))
def test_samples_in_proportion_are_served_by_abadi(norms, R):
    alike = np.outer(np.linspace(1, 3, 5), norms[0])
    assert finer_thresholds(alike, [0] * norms.shape[1], R).thresholds is not None


def test_twin_one_sample_out_of_proportion_is_not():
    norms = np.outer(np.linspace(1, 3, 5), [3.0, 4.0])
    norms[2, 0] *= 1.001
    assert finer_thresholds(norms, [0, 0], 1.0).thresholds is None


def test_random_gradients_never_fit():
    """Of 200 batches of 8 samples with Gaussian parts, none: "almost impossible in practice", as the paper says."""
    random = np.random.default_rng(0)
    for clip in ("abadi", "automatic"):
        for _ in range(200):
            norms = np.abs(random.normal(size=(8, 3)))
            assert finer_thresholds(norms, [0, 0, 0], 0.5, clip=clip).thresholds is None


def test_the_papers_example():
    """Its text says that g_j = [6, 0] isn't clipped at R = 4; it is. Still no R_1 serves both. See the docstring."""
    assert coarse_factors("abadi", np.array([[3.0, 4], [6, 0]]), 4.0) == pytest.approx([4 / 5, 4 / 6])
    assert coarse_factors("abadi", np.array([[3.0, 4], [3.5, 0]]), 4.0) == pytest.approx([4 / 5, 1])


def test_only_split_groups_matter():
    """Group 1 of two coarse ones stays whole: its threshold stays too, and a misfit lies in the split one."""
    norms = [[3.0, 4.0, 1.0], [6.0, 8.0, 9.0]]
    assert finer_thresholds(norms, [0, 0, 1], [4.0, 2.0]).thresholds == pytest.approx((2.4, 3.2, 2.0))
    assert finer_thresholds([[3.0, 4, 1], [6, 0, 9]], [0, 0, 1], [4.0, 2.0]).misfit.group == 0


def test_nobody_clipped_and_nobody_there():
    assert finer_thresholds([[1.0, 2.0], [2.0, 1.0]], [0, 0], 5.0).thresholds == (2.0, 2.0)
    assert finer_thresholds([[1.0, 0.0]], [0, 0], 0.5).thresholds == (0.5, 0.5)


def test_gamma_is_the_clip_functions_own():
    norms = np.array([[3.0, 4.0]])
    (threshold, _) = finer_thresholds(norms, [0, 0], 4.0, clip="automatic", gamma=0.5).thresholds
    whole = Automatic(gamma=0.5).factors(torch.tensor([5.0], dtype=torch.float64), 4.0)
    assert Automatic(gamma=0.5).factors(torch.tensor([3.0], dtype=torch.float64), threshold).item() == pytest.approx(
        whole.item()
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1.0]], [0, 0], 1.0), r"norms must be \[B, M\]"),
        (([[-1.0]], [0], 1.0), "norms must be >= 0"),
        (([[1.0]], [1], 1.0), "without a gap"),
        (([[1.0]], [0], 0.0), "must be positive"),
        (([[1.0]], [0], [1.0, 2.0]), "must be positive: one number, or one for each of 1"),
        (([[1.0]], [0], 1.0, "global"), "is unknown here"),
    ],
)
def test_refusals(arguments, message):
    *first, clip = arguments if len(arguments) == 4 else (*arguments, "abadi")
    with pytest.raises(ValueError, match=message):
        finer_thresholds(*first, clip=clip)
