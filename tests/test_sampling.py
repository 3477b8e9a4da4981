"""Poisson sampling: its law, its micro-batches, and which steps may call it groupclip's.

The law is judged by :func:`faults`: eight two-sided tests, each with a false-alarm rate of 1e-6 (2e-6 where a
chi-square stands for a sum of binomials), so at most 1e-5 for one sampler. Keys and seeds are fixed: what passes
once passes always.
"""

import gc
import itertools
import logging
import weakref
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from groupclip import sampling
from groupclip.errors import PrivacyViolation
from groupclip.mechanism import Mechanism
from groupclip.sampling import claim, draw, poisson_batches

KEY = bytes(range(32))
SIZE, RATE, STEPS, ALPHA = 1_000, 0.01, 2_000, 1e-6


# ---------------------------------------------------------------------------------------------- the law


def two_sided(law, value: float) -> float:
    """Probability, under ``law``, of a value at least as far out."""
    return min(1.0, 2 * min(law.cdf(value), law.sf(value - 1 if law.dist.name == "binom" else value)))


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


def without_empties(rng: np.random.Generator) -> list[np.ndarray]:
    """Small batches are drawn again, as samplers do that can't hand out an empty one."""
    batches = poisson(rng)
    for step, batch in enumerate(batches):
        while len(batch) < 6:
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
        (without_empties, {"batch size"}),
        (lambda rng: poisson(rng, 1.06 * RATE), {"rate"}),
        (lambda rng: poisson(rng, 0.94 * RATE), {"rate"}),
    ],
    ids=["fixed size", "shuffled", "sticky", "paired", "favoured", "with replacement", "no empties", "6 % up", "6 % down"],
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

    monkeypatch.setattr(sampling, "Keystream", Fixed)
    assert draw(5, 1 / 3, key=KEY, step=0).tolist() == [0, 1]


def test_chunks_are_joined_to_one_draw(monkeypatch):
    whole = draw(10_000, 0.1, key=KEY, step=3)
    monkeypatch.setattr(sampling, "_CHUNK", 999)
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


# --------------------------------------------------------------------------------- micro-batches and data


class Slow(TensorDataset):
    """A TensorDataset that isn't exactly one, so that it is read sample by sample."""


class Named(Dataset):
    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"x": torch.full((2, 3), float(index)), "y": index, "name": f"sample {index}"}


class Many(Named):
    """Also fetches a list at once, as torch's loaders ask for."""

    def __getitems__(self, indices: list[int]) -> list[dict[str, object]]:
        return [self[index] for index in indices]


PLAN = Mechanism(dataset_size=200, expected_batch_size=20, steps=8)
TENSORS = (torch.randn(200, 3, generator=torch.Generator().manual_seed(0)), torch.arange(200), torch.ones(200) > 0)


def contents(dataset, microbatch=7, **kwargs) -> list[list[object]]:
    return [list(batch) for batch in poisson_batches(dataset, PLAN, microbatch, key=KEY, **kwargs)]


def same(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(itertools.starmap(same, zip(one, other, strict=True)))
    return one == other


def test_the_fast_path_gives_what_the_slow_one_gives():
    assert same(contents(TensorDataset(*TENSORS)), contents(Slow(*TENSORS)))
    assert same(contents(TensorDataset(*TENSORS)), contents(TensorDataset(*TENSORS), collate=default_collate))
    assert same(contents(Named()), contents(Many()))


def test_any_map_style_data_and_collate():
    named = contents(Named())
    indices = [[index for batch in step for index in batch["y"].tolist()] for step in named]
    assert [[index for batch in step for index in batch.tolist()] for step in contents(list(range(200)))] == indices
    joined = contents(Named(), collate=lambda samples: [sample["y"] for sample in samples])
    assert [list(itertools.chain(*step)) for step in joined] == indices


@settings(max_examples=20, deadline=None)
@given(microbatch=st.integers(1, 250), start=st.integers(0, 8))
def test_micro_batches_change_nothing_and_a_resumed_run_goes_on(microbatch, start):
    whole = contents(TensorDataset(*TENSORS), 200)
    split = contents(TensorDataset(*TENSORS), microbatch, start=start)
    assert len(split) == 8 - start == len(poisson_batches(TensorDataset(*TENSORS), PLAN, start=start))
    for one, parts in zip(whole[start:], split, strict=True):
        assert all(1 <= len(y) <= microbatch for _, y, _ in parts)
        assert all(len(y) == microbatch for _, y, _ in parts[:-1])
        assert torch.equal(torch.cat([y for _, y, _ in one]), torch.cat([y for _, y, _ in parts]))


def test_empty_batches_are_steps_without_micro_batches():
    mechanism = Mechanism(dataset_size=3, expected_batch_size=0.5, steps=200)
    sizes = [len(list(batch)) for batch in poisson_batches([1, 2, 3], mechanism, 1, key=KEY)]
    assert len(sizes) == 200
    # P(empty) = (5/6)^3 = 0.58; all of 200 or none of them: below 1e-46
    assert 0 < sizes.count(0) < 200


@pytest.mark.parametrize("size", [199, 201, 0])
def test_another_length_than_planned(size):
    with pytest.raises(ValueError, match=rf"holds {size} samples, .* dataset_size=200: .* dataset_size=len\(dataset\)"):
        poisson_batches(list(range(size)), PLAN)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(200))


class StreamWithLength(Stream):
    def __len__(self) -> int:
        return 200


@pytest.mark.parametrize("dataset", [Stream(), StreamWithLength(), (index for index in range(200))])
def test_streams_are_refused(dataset):
    with pytest.raises(TypeError, match=r"can't be Poisson-sampled: a stream has no index, .* map-style"):
        poisson_batches(dataset, PLAN)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"microbatch": 0}, ValueError, "microbatch=0 must be >= 1"),
        ({"microbatch": 2.0}, TypeError, r"microbatch=2\.0 must be a whole number"),
        ({"microbatch": True}, TypeError, "microbatch=True must be a whole number"),
        ({"start": 9}, ValueError, r"start=9 must be in \[0, 8\], the planned steps; pass engine\.ledger\.steps"),
        ({"start": -1}, ValueError, "start=-1 must be in"),
        ({"start": 1.0}, TypeError, r"start=1\.0 must be a whole number"),
        ({"key": b"short"}, ValueError, "key must be 32 bytes; leave it out unless this is a test"),
        ({"key": "k" * 32}, ValueError, "key must be 32 bytes"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message) as caught:
        poisson_batches(list(range(200)), PLAN, **arguments)
    assert "short" not in str(caught.value) and "kkk" not in str(caught.value)


def test_a_batch_is_iterated_once():
    logical_batch = next(iter(poisson_batches(list(range(200)), PLAN)))
    list(logical_batch)
    with pytest.raises(PrivacyViolation, match=r"step 0 is iterated twice: its samples would count twice"):
        list(logical_batch)


def test_nothing_printed_tells_the_size_of_a_batch(caplog, capsys):
    """Under add-or-remove adjacency the size of a batch tells who is in."""
    shown = set()
    with caplog.at_level(logging.DEBUG):
        for key in (KEY, bytes(32)):
            batches = poisson_batches(list(range(200)), PLAN, 1, key=key)
            logical_batch = next(iter(batches))
            list(logical_batch)
            shown.add((repr(batches), repr(logical_batch), str(logical_batch)))
    assert len(shown) == 1
    assert not caplog.records and capsys.readouterr() == ("", "")
    with pytest.raises(TypeError):
        len(logical_batch)  # a progress bar would print it


# ------------------------------------------------------------------------------------------------- claims


def sampled(mechanism=PLAN, key=KEY, microbatch=7):
    return iter(poisson_batches(list(range(mechanism.dataset_size)), mechanism, microbatch, key=key))


def test_a_step_on_a_whole_batch_is_groupclips_once():
    for logical_batch in sampled():
        seen = sum(len(batch) for batch in logical_batch)
        assert claim(PLAN, 1, seen)
        assert not claim(PLAN, 1, seen)


def test_a_step_inside_the_inner_loop_counts_once_all_is_handed_out():
    logical_batch = next(sampled(microbatch=10))
    seen, claims = 0, []
    for batch in logical_batch:
        seen += len(batch)
        claims.append(claim(PLAN, 1, seen))
    assert len(claims) > 1  # of this key
    assert claims == [False] * (len(claims) - 1) + [True]


@pytest.mark.parametrize("change", [-1, 1, 7])
def test_fewer_or_more_samples_are_the_users_own(change):
    run = sampled()
    seen = sum(len(batch) for batch in next(run))
    assert not claim(PLAN, 1, seen + change)


def test_a_micro_batch_that_was_skipped():
    run = sampled()
    seen = sum(len(batch) for batch in itertools.islice(next(run), 1))
    assert not claim(PLAN, 1, seen)


def test_without_any_batch():
    assert not claim(PLAN, 1, 0)
    assert not claim(PLAN, 1, 64)


def test_empty_batches_are_claimed_unread():
    mechanism = Mechanism(dataset_size=3, expected_batch_size=1e-9, steps=3)
    for _ in sampled(mechanism):
        assert claim(mechanism, 1, 0)
        assert not claim(mechanism, 1, 0)


def test_an_abandoned_batch_can_not_vouch_for_a_later_step():
    run = sampled()
    abandoned = next(run)
    seen = sum(len(batch) for batch in abandoned)  # read, but no step
    following = next(run)
    iter(following)  # the next one is begun, and both are still alive
    assert not claim(PLAN, 1, seen)


def test_an_abandoned_run_is_forgotten():
    run = sampled()
    seen = sum(len(batch) for batch in next(run))
    del run
    gc.collect()
    assert not claim(PLAN, 1, seen)


def test_an_exception_in_the_loop():
    run = sampled()
    seen = 0
    with pytest.raises(RuntimeError, match="out of memory"):
        for batch in next(run):
            seen += len(batch)
            raise RuntimeError("out of memory")
    assert not claim(PLAN, 1, seen)
    seen = sum(len(batch) for batch in next(run))  # the next step is whole again
    assert claim(PLAN, 1, seen)


def test_a_data_set_that_fails_hands_nothing_out():
    def collate(samples: list[int]) -> list[int]:
        raise OSError("unreadable")

    run = iter(poisson_batches(list(range(200)), PLAN, 200, collate=collate, key=KEY))
    logical_batch = next(run)
    with pytest.raises(OSError, match="unreadable"):
        list(logical_batch)
    size = len(draw(200, PLAN.sample_rate, key=KEY, step=0))
    assert not claim(PLAN, 1, size)


def test_two_interleaved_runs():
    other = Mechanism(dataset_size=200, expected_batch_size=30, steps=8)
    stranger = Mechanism(dataset_size=200, expected_batch_size=20, steps=9)
    for one, two in zip(sampled(), sampled(other), strict=True):
        seen_one, seen_two = (sum(len(batch) for batch in batches) for batches in (one, two))
        assert not claim(stranger, 1, seen_one)
        assert claim(other, 2, seen_two)
        assert claim(PLAN, 1, seen_one)


def test_two_interleaved_runs_of_equal_plans():
    for one, two in zip(sampled(), sampled(key=bytes(32)), strict=True):
        seen_one, seen_two = (sum(len(batch) for batch in batches) for batches in (one, two))
        assert claim(PLAN, 2, seen_two)
        assert claim(PLAN, 1, seen_one)


def test_two_engines_on_one_batch():
    for logical_batch in sampled():
        seen = sum(len(batch) for batch in logical_batch)
        assert claim(PLAN, 1, seen) and claim(PLAN, 2, seen)


def test_batches_drawn_ahead():
    """A prefetching loop draws batch t + 1 before the step on batch t."""
    for logical_batch in list(sampled()):
        seen = sum(len(batch) for batch in logical_batch)
        assert claim(PLAN, 1, seen)


def test_a_resumed_run_with_an_equal_plan():
    rebuilt = Mechanism.from_dict(PLAN.to_dict())
    for logical_batch in iter(poisson_batches(list(range(200)), rebuilt, start=5)):
        assert claim(PLAN, 1, sum(len(batch) for batch in logical_batch))


def test_nothing_is_kept_alive():
    kept = []
    for logical_batch in sampled():
        claim(PLAN, 1, sum(len(batch) for batch in logical_batch))
        kept.append(weakref.ref(logical_batch))
    assert [reference() is not None for reference in kept[:-1]] == [False] * (len(kept) - 1)
    del logical_batch
    assert kept[-1]() is None
