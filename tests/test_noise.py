"""The noise has the right law, is never used twice, and can't be foreseen.

False-alarm rates: every statistical check below accepts the right law except with the probability
written at it. Each has a twin: a wrong law that the same function must reject. Sources under test have
fresh keys, so every run of the suite is a new sample.
"""

import copy
import io
import math
import os
import pickle
import random
import re
import warnings

import numpy as np
import pytest
import torch
from scipy import stats

from groupclip import noise as noise_module
from groupclip.errors import PrivacyViolation
from groupclip.keystream import Keystream, derive_key, new_key
from groupclip.noise import CHUNK, InsecureNoise, NoiseSource, SecureNoise, _pieces, _Workspace

N = 31_000  # the least number of draws at which the standard deviation is known to 2 % at 5 standard errors
KEY = bytes(range(32))


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


def test_large_call_is_standard_normal_across_its_chunks():
    z = draw(SecureNoise(), 3 * CHUNK + 1)
    assert faults(z) == set()
    assert not correlated(z[:CHUNK], z[CHUNK : 2 * CHUNK])


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


class Conditioned:
    """A keystream given that the first ``bits`` bits of every ``u`` are zero: |z| is large there."""

    def __init__(self, bits: int) -> None:
        self._stream, self._bits = Keystream(new_key(), "test"), bits

    def fill(self, words: np.ndarray) -> None:
        self._stream.fill(words)
        words[: len(words) // 2] >>= self._bits


def coarse(stream, count: int, std: float) -> torch.Tensor:
    """Box and Muller's method with uniforms of 24 bits, as a float32 generator has them."""
    words = np.empty(count, dtype=np.int64)
    stream.fill(words)
    v, w = words[: count // 2], words[count // 2 :]
    u = ((np.abs(v) >> 39) + 1) * 2.0**-24
    radius, angle = std * np.sqrt(-2 * np.log(u)), w * (math.pi * 2.0**-63)
    return torch.from_numpy(np.concatenate([radius * np.cos(angle), radius * np.sin(angle)]))


def tail_is_right(draw_normals, bits: int, limit: float) -> bool:
    """Whether |z| > limit comes up as often as it should, among draws that have u < 2^-bits.

    As u < 2^-bits whenever |z| > limit, the rate is P(|z| > limit) 2^bits. False-alarm rate below 1e-8
    (6 standard errors of a Poisson count of several hundred).
    """
    assert limit > math.sqrt(2 * bits * math.log(2))
    n = 200_000
    expected = n * 2 * stats.norm.sf(limit) * 2.0**bits
    assert expected > 200
    count = int((draw_normals(Conditioned(bits), n, 1.0).abs() > limit).sum())
    return bool(abs(count - expected) < 6 * math.sqrt(expected))


@pytest.mark.parametrize(("bits", "limit"), [(20, 5.77), (40, 8.0)])
def test_tails_go_on_where_float32_generators_stop(bits, limit):
    assert tail_is_right(_Workspace(200_000).draw, bits, limit)
    assert not tail_is_right(coarse, bits, limit)


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


def test_word_zero_and_extreme_words_give_finite_normals():
    class Extreme:
        def fill(self, words):
            words[:] = [0, -(2**63), 2**63 - 1, 1, 0, -(2**63), 2**63 - 1, 5]

    z = _Workspace(8).draw(Extreme(), 8, 1.0)  # pyright: ignore[reportArgumentType]
    assert z.isfinite().all()
    assert z[0] == pytest.approx(math.sqrt(2 * 63 * math.log(2)))  # the farthest draw there can be: 9.35
    assert z[[1, 2, 5, 6]].abs().max() < 1e-7  # u = 1


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


def test_calls_and_sources_are_independent():
    source = SecureNoise()
    a, b, c = draw(source, N), draw(source, N), draw(SecureNoise(), N)
    assert not correlated(a, b)
    assert not correlated(a, c)
    assert not correlated(b, c)


def test_same_key_gives_the_same_noise():
    first, second = SecureNoise(KEY), SecureNoise(KEY)
    for count in (5, N, CHUNK + 1):
        a, b = draw(first, count), draw(second, count)
        assert (a == b).all()
    assert correlated(draw(SecureNoise(KEY), N), draw(SecureNoise(KEY), N))  # twin of the independence test


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sum_is_float64_and_cast_last(dtype):
    base = torch.linspace(-3, 3, N).to(dtype)
    exact = base.double()
    InsecureNoise(2).add_(exact, 0.5)
    assert not torch.equal(exact, exact.to(dtype).double())
    InsecureNoise(2).add_(base, 0.5)
    assert torch.equal(base, exact.to(dtype))


def test_pieces_cover_every_coordinate_once():
    whole = torch.zeros(6, 7, 8)
    for view in (whole, whole[1:5, ::2], whole.permute(2, 0, 1), whole[:, 3], whole[2, 3, 4], whole[:0]):
        for limit in (1, 5, 20, 60, 1000):
            whole.zero_()
            sizes = []
            for piece in _pieces(view, limit):
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


@pytest.mark.parametrize("source", [SecureNoise(KEY), InsecureNoise(5), Keystream(KEY, "test")], ids=repr)
def test_copies_and_pickles_are_refused(source):
    for copier in (pickle.dumps, copy.copy, copy.deepcopy, lambda s: torch.save({"noise": s}, io.BytesIO())):
        with pytest.raises(PrivacyViolation, match="can't be copied or pickled"):
            copier(source)


def test_key_is_nowhere_to_be_seen():
    source = SecureNoise(KEY)
    objects = [source, source._normals, source._states]
    shown = " ".join(repr(item) + str(item) + repr(vars(item)) for item in objects)
    for secret in (KEY, *(derive_key(KEY, f"groupclip/noise/{name}") for name in ("normals", "states"))):
        assert secret.hex() not in shown
        assert repr(secret) not in shown
        assert secret not in [value for item in objects for value in vars(item).values()]


def test_wrong_keys_are_refused_without_being_shown():
    with pytest.raises(ValueError, match="31 bytes") as caught:
        SecureNoise(b"\x07secret" + bytes(24))
    assert "secret" not in re.sub(r"secrets\.token_bytes", "", str(caught.value))
    with pytest.raises(TypeError, match="must be bytes"):
        SecureNoise("0" * 32)  # pyright: ignore[reportArgumentType]


def test_labels_give_independent_streams():
    first, second = (Keystream(KEY, label).words(N) for label in ("a", "b"))
    assert len(np.intersect1d(first, second)) == 0  # 64-bit words: false-alarm rate 1e-10
    assert (first == Keystream(KEY, "a").words(N)).all()
    source = SecureNoise(KEY)
    assert (source._normals.words(8) != source._states.words(8)).all()


def test_stream_is_aes_256_counter_mode_and_ignores_the_cut_into_reads():
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    cipher = Cipher(algorithms.AES(derive_key(KEY, "a")), modes.ECB()).encryptor()
    count = 20_000  # more than one read of zeros
    expected = cipher.update(b"".join(i.to_bytes(16, "big") for i in range(count // 2)))
    stream = Keystream(KEY, "a")
    parts = [stream.words(n) for n in (0, 1, 2, 14_997, 5_000)]
    assert np.concatenate(parts).tobytes() == expected


def test_insecure_noise_uses_the_whole_seed_and_says_what_it_is():
    assert SecureNoise.secure
    assert not InsecureNoise.secure
    assert "INSECURE" in repr(InsecureNoise(5))
    assert "INSECURE" not in repr(SecureNoise())
    assert not isinstance(InsecureNoise(5), SecureNoise)
    seeds = (5, 5 + 2**32, 5 + 2**40, -5)  # torch's CPU generator takes the first three for one
    assert len({draw(InsecureNoise(seed), 1)[0] for seed in seeds}) == 4


def in_child(draw_bytes) -> bytes:
    """What ``draw_bytes()`` returns in a forked child."""
    out, into = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork while other threads live
        pid = os.fork()
    if pid == 0:
        try:
            os.write(into, draw_bytes())
        finally:
            os._exit(0)
    os.close(into)
    with open(out, "rb") as pipe:
        result = pipe.read()
    os.waitpid(pid, 0)
    return result


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_child_does_not_repeat_its_parent():
    source = SecureNoise(KEY)
    draw(source, 10)
    child, sibling = (in_child(lambda: draw(source, 4).tobytes()) for _ in range(2))
    parent = draw(source, 4).tobytes()
    assert len(child) == 32
    assert len({child, sibling, parent}) == 3

    def without_noticing() -> bytes:
        source._normals._pid = os.getpid()
        return draw(source, 4).tobytes()

    twin = in_child(without_noticing)
    assert twin == draw(source, 4).tobytes()  # so the comparison above does see a repetition


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
