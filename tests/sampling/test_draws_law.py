"""The law of the sampler.

It is judged by :func:`faults`: eight two-sided tests, each with a false-alarm rate of 1e-6 (2e-6 where a chi-square
stands for a sum of binomials), so at most 1e-5 for one sampler. Keys and seeds are fixed: what passes once passes
always.
"""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import TensorDataset

from groupclip.privacy.mechanism import Mechanism
from groupclip.sampling import draws
from groupclip.sampling.batches import poisson_batches
from groupclip.sampling.draws import draw
from law import two_sided

KEY = bytes(range(32))
SIZE, RATE, STEPS, ALPHA = 1_000, 0.01, 2_000, 1e-6


def faults(batches: list[np.ndarray]) -> set[str]:
    """Names of the tests that reject ``batches`` (indices of each step) as Poisson samples at RATE."""
    entered = np.zeros((STEPS, SIZE), dtype=np.int64)
    for step, batch in enumerate(batches):
        np.add.at(entered[step], batch, 1)
    variance = RATE * (1 - RATE)
    by_sample = ((entered.sum(0) - STEPS * RATE) ** 2).sum() / (STEPS * variance)
    by_step = ((entered.sum(1) - SIZE * RATE) ** 2).sum() / (SIZE * variance)

    def meetings(one: np.ndarray, other: np.ndarray) -> float:
        """Two disjoint sets of draws: both true with probability RATE^2, independently over the pairs."""
        return two_sided(stats.binom(one.size, RATE**2), int((one * other).sum()))

    half = SIZE // 2
    probabilities = {
        "drawn twice": 1.0 if entered.max() <= 1 else 0.0,
        "rate": two_sided(stats.binom(SIZE * STEPS, RATE), int(entered.sum())),
        "per sample": two_sided(stats.chi2(SIZE), by_sample),  # rates that differ, or shares that are dealt out
        "batch size": two_sided(stats.chi2(STEPS), by_step),
        "next step": meetings(entered[0::2], entered[1::2]),
        "step after next": meetings(entered[0::4], entered[2::4]),
        "neighbours": meetings(entered[:, 0::2], entered[:, 1::2]),
        "halves": meetings(entered[:, :half], entered[:, half:]),
    }
    return {name for name, probability in probabilities.items() if probability < ALPHA}


def poisson(rng: np.random.Generator, rate: float = RATE) -> list[np.ndarray]:
    return [np.flatnonzero(rng.random(SIZE) < rate) for _ in range(STEPS)]


def fixed_size(rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.choice(SIZE, int(SIZE * RATE), replace=False) for _ in range(STEPS)]


def shuffled(rng: np.random.Generator) -> list[np.ndarray]:
    batches = int(1 / RATE)
    return [part for _ in range(STEPS // batches) for part in np.split(rng.permutation(SIZE), batches)]


def sticky(rng: np.random.Generator) -> list[np.ndarray]:
    """Every second step keeps a sample of the step before with probability a half."""
    batches = poisson(rng)
    for one, other in zip(range(0, STEPS, 2), range(1, STEPS, 2), strict=True):
        kept = batches[one][rng.random(len(batches[one])) < 0.5]
        batches[other] = np.union1d(kept, batches[other][: max(0, len(batches[other]) - len(kept))])
    return batches


def paired(rng: np.random.Generator) -> list[np.ndarray]:
    """Samples 2i and 2i + 1 enter together."""
    chosen = [np.flatnonzero(rng.random(SIZE // 2) < RATE) for _ in range(STEPS)]
    return [np.sort(np.concatenate([2 * pairs, 2 * pairs + 1])) for pairs in chosen]


def favoured(rng: np.random.Generator) -> list[np.ndarray]:
    """The right mean rate, but half of the samples enter more often."""
    rates = np.where(np.arange(SIZE) < SIZE // 2, 1.3 * RATE, 0.7 * RATE)
    return [np.flatnonzero(rng.random(SIZE) < rates) for _ in range(STEPS)]


def with_replacement(rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.integers(0, SIZE, rng.poisson(SIZE * RATE)) for _ in range(STEPS)]


def without_small_ones(rng: np.random.Generator) -> list[np.ndarray]:
    """Small batches are drawn again, as samplers do that can't hand out an empty one; below 8, so that any seed shows it."""
    batches = poisson(rng)
    for step, batch in enumerate(batches):
        while len(batch) < 8:
            batch = np.flatnonzero(rng.random(SIZE) < RATE)
        batches[step] = batch
    return batches


@pytest.mark.parametrize("seed", range(5))
def test_the_sampler_is_accepted(seed):
    mechanism = Mechanism(dataset_size=SIZE, expected_batch_size=SIZE * RATE, steps=STEPS)
    dataset = TensorDataset(torch.arange(SIZE))
    batches = [
        np.concatenate([np.zeros(0, dtype=np.int64), *(indices.numpy() for (indices,) in logical_batch)])
        for logical_batch in poisson_batches(dataset, mechanism, 4, key=bytes([seed]) * 32)
    ]
    assert faults(batches) == set()


@pytest.mark.parametrize("seed", range(3))
def test_an_independent_poisson_sampler_is_accepted(seed):
    assert faults(poisson(np.random.default_rng(seed))) == set()


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (fixed_size, {"batch size"}),
        (shuffled, {"batch size", "per sample", "next step"}),
        (sticky, {"next step"}),
        (paired, {"neighbours", "batch size"}),
        (favoured, {"per sample"}),
        (with_replacement, {"drawn twice"}),
        (without_small_ones, {"batch size", "rate"}),
        (lambda rng: poisson(rng, 1.06 * RATE), {"rate"}),
        (lambda rng: poisson(rng, 0.94 * RATE), {"rate"}),
    ],
    ids=[
        "fixed size",
        "shuffled",
        "sticky",
        "paired",
        "favoured",
        "with replacement",
        "no small ones",
        "6 % up",
        "6 % down",
    ],
)
def test_other_samplers_are_rejected(sampler, expected):
    assert expected <= faults(sampler(np.random.default_rng(0)))


def test_the_comparison_is_exact(monkeypatch):
    """q = 1/3 has no finite binary form; the word that equals floor(q 2^64) is out, the one below is in."""
    threshold = int(Fraction(1 / 3) * 2**64)
    words = np.array([0, threshold - 1, threshold, threshold + 1, 2**64 - 1], dtype=np.uint64)

    class Fixed:
        def __init__(self, key: bytes, label: str) -> None: ...

        def words(self, count: int) -> np.ndarray:
            return words[:count]

    monkeypatch.setattr(draws, "Keystream", Fixed)
    assert draw(5, 1 / 3, key=KEY, step=0).tolist() == [0, 1]


def test_chunks_are_joined_to_one_draw(monkeypatch):
    whole = draw(10_000, 0.1, key=KEY, step=3)
    monkeypatch.setattr(draws, "_CHUNK", 999)
    assert np.array_equal(draw(10_000, 0.1, key=KEY, step=3), whole)


def test_at_rate_one_everything_enters():
    mechanism = Mechanism(dataset_size=10, expected_batch_size=10, steps=3)
    for logical_batch in poisson_batches(TensorDataset(torch.arange(10)), mechanism):
        assert [batch.tolist() for (batch,) in logical_batch] == [list(range(10))]


def test_keys_are_fresh_for_every_pass_and_every_run():
    mechanism = Mechanism(dataset_size=1_000, expected_batch_size=100, steps=2)
    batches = poisson_batches(list(range(1_000)), mechanism, 1_000)
    passes = [[torch.cat(list(batch)).tolist() for batch in batches] for _ in range(2)]
    drawn = [*passes[0], *passes[1]]
    assert all(one != other for one, other in itertools.combinations(drawn, 2))  # equal by chance: below 1e-100
