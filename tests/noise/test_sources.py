"""The noise has the right law, is never used twice, and can't be foreseen.

What is drawn is float64 unless a test says float32, whose normals are made another way.

False-alarm rates: every statistical check below accepts the right law except with the probability
written at it. Each has a twin: a wrong law that the same function must reject. Sources under test have
fresh keys, so every run of the suite is a new sample.
"""

import copy
import io
import math
import pickle
import random

import numpy as np
import pytest
import torch
from scipy import stats

from groupclip import noise as noise_module
from groupclip.errors import PrivacyViolation
from groupclip.noise import normals
from groupclip.noise.keystream import Keystream, derive_key
from groupclip.noise.normals import CHUNK, SINGLE_CHUNK, pieces
from groupclip.noise.sources import InsecureNoise, NoiseSource, SecureNoise

N = 31_000  # the least number of draws at which the standard deviation is known to 2 % at 5 standard errors
KEY = bytes(range(32))


@pytest.fixture(autouse=True, params=[True, False], ids=["by NumPy", "by torch"])
def way(request, monkeypatch):
    """Both ways to compute normals, whichever this processor would take."""
    monkeypatch.setattr(normals, "vectorised", lambda: request.param)


def draw(source: NoiseSource, count: int, std: float = 1.0, dtype: torch.dtype = torch.float64) -> np.ndarray:
    tensor = torch.zeros(count, dtype=dtype)
    source.add_(tensor, std)
    return tensor.double().numpy()


def correlated(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether values or squares of two samples correlate. False-alarm rate below 1e-7 (6 standard errors)."""
    return any(abs(np.corrcoef(a**k, b**k)[0, 1]) > 6 / math.sqrt(len(a)) for k in (1, 2))


def faults(z: np.ndarray) -> set[str]:
    """What speaks against ``z`` being independent standard normals. False-alarm rate below 4e-6.

    Of which: std 6e-7 at N draws, KS 1e-6, mean 2e-9, four lags 4e-7, distinct 0 (for float32: the
    chance of 31 coincidences among N draws, below 1e-12).
    """
    n = len(z)
    lags = (1, 2, n // 4, n // 2)  # n/2: the sine next to its cosine, which have the radius in common
    found = {
        "std": abs(z.std() - 1) > 0.02,
        "mean": abs(z.mean()) > 6 / math.sqrt(n),
        "law": stats.kstest(z, "norm").pvalue < 1e-6,
        "lag": any(correlated(z[:-lag], z[lag:]) for lag in lags),
        "distinct": len(np.unique(z)) < 0.999 * n,
    }
    return {name for name, wrong in found.items() if wrong}


@pytest.mark.parametrize("std", [1.0, 1e-3, 250.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_noise_is_standard_normal_times_std(std, dtype):
    assert faults(draw(SecureNoise(), N, std, dtype) / std) == set()


@pytest.mark.parametrize(("dtype", "chunk"), [(torch.float64, CHUNK), (torch.float32, SINGLE_CHUNK)])
def test_large_call_is_standard_normal_across_its_chunks(dtype, chunk):
    z = draw(SecureNoise(), 3 * chunk + 1, dtype=dtype)
    by_chance = {"distinct"} if dtype == torch.float32 else set()  # so many float32 numbers: some are the same
    assert faults(z) <= by_chance
    assert faults(z[-N:]) == set()
    assert not correlated(z[:chunk], z[chunk : 2 * chunk])
    assert not correlated(z[: chunk // 2], z[chunk // 2 : chunk])  # the two normals of a pair


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda z: 0.95 * z, "std"),
        (lambda z: 1.05 * z, "std"),
        (lambda z: z + 0.05, "mean"),
        (lambda z: np.random.default_rng(0).uniform(-math.sqrt(3), math.sqrt(3), len(z)), "law"),
        (lambda z: (z + np.roll(z, 1)) / math.sqrt(2), "lag"),
        (lambda z: np.concatenate([z[: N // 2], z[: N // 2] * np.sign(z[N // 2 :])]), "lag"),
        (lambda z: np.concatenate([z[: N // 2], z[: N // 2]]), "distinct"),
        (lambda z: torch.from_numpy(z).bfloat16().double().numpy(), "distinct"),
    ],
)
def test_twins_wrong_laws_are_rejected(spoil, fault):
    assert fault in faults(spoil(draw(InsecureNoise(1), N)))


@pytest.mark.parametrize("count", [1, 2, 3, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3])
def test_no_value_comes_twice_in_a_call_or_in_the_next(count):
    source = SecureNoise()
    z = np.concatenate([draw(source, count), draw(source, count)])
    coincidences = 2 * count - len(np.unique(z))
    assert coincidences <= count // 10_000  # 53 random bits each: false-alarm rate below 1e-12
    assert (z != 0).all()


def test_twin_stream_that_restarts_is_seen():
    class Restarting:
        def fill(self, words):
            Keystream(KEY, "test").fill(words)

    source = SecureNoise()
    source._normals = Restarting()  # pyright: ignore[reportAttributeAccessIssue]
    assert len(np.unique(draw(source, 2 * CHUNK))) == CHUNK
    assert correlated(draw(source, N), draw(source, N))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_calls_and_sources_are_independent(dtype):
    source = SecureNoise()
    a, b, c = (draw(one, N, dtype=dtype) for one in (source, source, SecureNoise()))
    assert not correlated(a, b)
    assert not correlated(a, c)
    assert not correlated(b, c)


def test_same_key_gives_the_same_noise():
    first, second = SecureNoise(KEY), SecureNoise(KEY)
    for count in (5, N, CHUNK + 1):
        a, b = draw(first, count), draw(second, count)
        assert (a == b).all()
    assert correlated(draw(SecureNoise(KEY), N), draw(SecureNoise(KEY), N))  # twin of the independence test


@pytest.mark.parametrize(
    ("dtype", "std"), [(torch.bfloat16, 0.5), (torch.float16, 0.5), (torch.float32, 1e-20), (torch.float32, 1e20)]
)
def test_sum_is_float64_and_cast_last(dtype, std):
    base = (std * torch.linspace(-3, 3, N)).to(dtype)
    exact = base.double()
    InsecureNoise(2).add_(exact, std)
    assert not torch.equal(exact, exact.to(dtype).double())
    InsecureNoise(2).add_(base, std)
    assert torch.equal(base, exact.to(dtype))


@pytest.mark.parametrize("std", [0.5, 1e-9, 1e9])
def test_sum_of_float32_is_rounded_once(std):
    base = std * torch.linspace(-3, 3, N)
    exact = base.double() + torch.from_numpy(draw(InsecureNoise(2), N, std, torch.float32))
    InsecureNoise(2).add_(base, std)
    assert torch.equal(base, exact.float())


def test_pieces_cover_every_coordinate_once():
    whole = torch.zeros(6, 7, 8)
    for view in (whole, whole[1:5, ::2], whole.permute(2, 0, 1), whole[:, 3], whole[2, 3, 4], whole[:0]):
        for limit in (1, 5, 20, 60, 1000):
            whole.zero_()
            sizes = []
            for piece in pieces(view, limit):
                piece.add_(1)
                sizes.append(piece.numel())
            assert (view == 1).all()
            assert whole.sum() == view.numel()  # nothing outside the view
            assert max(sizes, default=0) <= limit


def test_strided_tensors_get_noise_in_their_own_coordinates_only():
    whole = torch.zeros(300, 2, 700, dtype=torch.float64)
    view = whole[:, 1].T  # 210,000 coordinates: two chunks
    SecureNoise().add_(view, 1.0)
    assert faults(view.flatten().numpy()) == set()
    assert (whole[:, 0] == 0).all()


def test_scalars_empty_tensors_and_leaves():
    source = SecureNoise()
    source.add_(torch.empty(0, 3), 1.0)
    scalar = torch.zeros(())
    source.add_(scalar, 1.0)
    assert scalar != 0
    leaf = torch.nn.Parameter(torch.zeros(4))
    source.add_(leaf, 1.0)
    assert (leaf != 0).all()
    assert leaf.grad_fn is None
    source.add_(torch.empty(3, device="meta"), 1.0)  # drawn on the CPU and carried over


def test_zero_std_adds_nothing_and_draws_nothing():
    source = InsecureNoise(3)
    assert (draw(source, 10, 0.0) == 0).all()
    assert (draw(source, 10) == draw(InsecureNoise(3), 10)).all()


@pytest.mark.parametrize("std", [-1.0, -1e-300, math.nan, math.inf, -math.inf])
def test_impossible_std_is_refused(std):
    tensor = torch.ones(3)
    with pytest.raises(ValueError, match="standard deviation"):
        SecureNoise().add_(tensor, std)
    assert (tensor == 1).all()


@pytest.mark.parametrize("tensor", [torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.complex64)])
def test_types_without_real_coordinates_are_refused(tensor):
    with pytest.raises(TypeError, match="convert it"):
        SecureNoise().add_(tensor, 1.0)


def test_sparse_and_expanded_tensors_are_refused():
    with pytest.raises(TypeError, match="to_dense"):
        SecureNoise().add_(torch.eye(3).to_sparse(), 1.0)
    with pytest.raises(ValueError, match="share memory"):
        SecureNoise().add_(torch.zeros(1, 3).expand(5, 3), 1.0)
    with pytest.raises(ValueError, match="share memory"):
        SecureNoise().add_(torch.zeros(11).unfold(0, 3, 1), 1.0)


def test_global_generators_are_neither_read_nor_written():
    def states():
        return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()

    samples = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        before = states()
        samples.append(draw(SecureNoise(), N))
        assert states() == before
    assert not correlated(*samples)

    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    a = draw(InsecureNoise(4), 10)
    torch.manual_seed(2)
    assert (draw(InsecureNoise(4), 10) == a).all()


@pytest.mark.parametrize("source", [SecureNoise(KEY), InsecureNoise(5)], ids=repr)
def test_copies_and_pickles_are_refused(source):
    for copier in (pickle.dumps, copy.copy, copy.deepcopy, lambda s: torch.save({"noise": s}, io.BytesIO())):
        with pytest.raises(PrivacyViolation, match="can't be copied or pickled"):
            copier(source)


def test_normals_and_generator_states_come_from_different_streams():
    source = SecureNoise(KEY)
    assert (source._normals.words(8) != source._states.words(8)).all()


def test_key_is_nowhere_to_be_seen():
    source = SecureNoise(KEY)
    objects = [source, source._normals, source._states]
    shown = " ".join(repr(item) + str(item) + repr(vars(item)) for item in objects)
    for secret in (KEY, *(derive_key(KEY, f"groupclip/noise/{name}") for name in ("normals", "states"))):
        assert secret.hex() not in shown
        assert repr(secret) not in shown
        assert secret not in [value for item in objects for value in vars(item).values()]


def test_insecure_noise_uses_the_whole_seed_and_says_what_it_is():
    assert SecureNoise.secure
    assert not InsecureNoise.secure
    assert "INSECURE" in repr(InsecureNoise(5))
    assert "INSECURE" not in repr(SecureNoise())
    assert not isinstance(InsecureNoise(5), SecureNoise)
    seeds = (5, 5 + 2**32, 5 + 2**40, -5)  # torch's CPU generator takes the first three for one
    assert len({draw(InsecureNoise(seed), 1)[0] for seed in seeds}) == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_noise_has_the_right_law_and_leaves_the_global_generator_alone():
    source, state = SecureNoise(KEY), torch.cuda.get_rng_state()
    a, b, again = (torch.zeros(noise_module._CUDA_CHUNK + N, device="cuda") for _ in range(3))
    source.add_(a, 1.0)
    source.add_(b, 1.0)
    SecureNoise(KEY).add_(again, 1.0)
    assert torch.equal(a, again)
    assert torch.equal(state, torch.cuda.get_rng_state())
    first, second = a.double().cpu().numpy(), b.double().cpu().numpy()
    assert faults(first[:N]) == set()
    assert not correlated(first, second)
    assert not correlated(first[:N], first[-N:])  # the two chunks of one call
