"""The law of cyclic Poisson sampling, with twins that must be rejected.

Judged by :func:`faults`: five tests, each with a false-alarm rate of 1e-6. Keys and seeds are fixed: what passes once
passes always.
"""

import dataclasses

import numpy as np
import pytest
import torch
from scipy import stats

from groupclip.privacy.mechanism import Mechanism
from groupclip.sampling.batches import logical_batches
from groupclip.sampling.draws import drawn, parts_of
from law import two_sided

KEY = bytes(range(32))
PARTS, SIZE, STEPS, ALPHA = 4, 1_002, 1_000, 1e-6
PLAN = Mechanism(dataset_size=SIZE, expected_batch_size=25, steps=STEPS, noise_multiplier=1.0, adjacency="zero-out", bands=PARTS)
RATE = PLAN.part_rate


def faults(batches: list[np.ndarray]) -> set[str]:
    """Names of the tests that reject ``batches`` (indices of each step)."""
    entered = np.zeros((STEPS, SIZE), dtype=np.int64)
    for step, batch in enumerate(batches):
        np.add.at(entered[step], batch, 1)
    turn = np.array([[entered[first::PARTS, i].sum() for first in range(PARTS)] for i in range(SIZE)])
    part = turn.argmax(1)
    trials = np.array([len(range(first, STEPS, PARTS)) for first in range(PARTS)])[part]
    inside = turn[np.arange(SIZE), part]
    by_sample = ((inside - trials * RATE) ** 2 / (trials * RATE * (1 - RATE))).sum()
    own = [entered[first::PARTS][:, part == first] for first in range(PARTS)]  # draws that are made at all
    met = sum(int((draws[0::2][: len(draws) // 2] * draws[1::2][: len(draws) // 2]).sum()) for draws in own)
    pairs = sum(draws[0::2][: len(draws) // 2].size for draws in own)
    halves = [(draws[:, 0::2], draws[:, 1::2]) for draws in own]
    side = sum(int((one[:, : other.shape[1]] * other).sum()) for one, other in halves)
    sides = sum(other.size for _, other in halves)
    probabilities = {
        "drawn out of turn": 1.0 if turn.sum() == inside.sum() and entered.max() <= 1 else 0.0,
        "rate": two_sided(stats.binom(int(trials.sum()), RATE), int(inside.sum())),
        "per sample": two_sided(stats.chi2(SIZE), by_sample),
        "from round to round": two_sided(stats.binom(pairs, RATE**2), met),
        "between samples": two_sided(stats.binom(sides, RATE**2), side),
    }
    return {name for name, probability in probabilities.items() if probability < ALPHA}


def ours() -> list[np.ndarray]:
    return [drawn(PLAN, key=KEY, step=step) for step in range(STEPS)]


def at_rate(rate: float) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    parts = np.array_split(rng.permutation(SIZE), PARTS)
    return [parts[step % PARTS][rng.random(len(parts[step % PARTS])) < rate] for step in range(STEPS)]


def plain_poisson() -> list[np.ndarray]:
    plain = dataclasses.replace(PLAN, bands=1)
    return [drawn(plain, key=KEY, step=step) for step in range(STEPS)]


def dealt_anew_each_round() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    found = []
    for step in range(STEPS):
        if step % PARTS == 0:
            parts = np.array_split(rng.permutation(SIZE), PARTS)
        found.append(parts[step % PARTS][rng.random(len(parts[step % PARTS])) < RATE])
    return found


def fixed_share() -> list[np.ndarray]:
    """Every sample the same number of times: rounds take turns among fixed quarters of a part."""
    rng = np.random.default_rng(0)
    parts = np.array_split(rng.permutation(SIZE), PARTS)
    shares = [np.array_split(part, round(1 / RATE)) for part in parts]
    return [shares[step % PARTS][(step // PARTS) % len(shares[0])] for step in range(STEPS)]


def test_the_sampler_has_the_law():
    assert faults(ours()) == set()
    assert faults(at_rate(RATE)) == set()


@pytest.mark.parametrize(
    ("batches", "noticed"),
    [
        (plain_poisson, "drawn out of turn"),
        (dealt_anew_each_round, "drawn out of turn"),
        (fixed_share, "per sample"),
        (lambda: at_rate(RATE / PARTS), "rate"),
        (lambda: at_rate(1.05 * RATE), "rate"),
    ],
    ids=["plain Poisson", "dealt anew", "fixed shares", "the rate of one band", "5 % too often"],
)
def test_other_laws_are_rejected(batches, noticed):
    assert noticed in faults(batches())


def test_the_data_are_dealt_once_and_evenly():
    whole = dataclasses.replace(PLAN, expected_batch_size=SIZE / PARTS)  # each step draws all of its part
    parts = [drawn(whole, key=KEY, step=step) for step in range(2 * PARTS)]
    assert sorted(np.concatenate(parts[:PARTS]).tolist()) == list(range(SIZE))
    assert all((a == b).all() for a, b in zip(parts[:PARTS], parts[PARTS:], strict=True))
    assert all((a == b).all() for a, b in zip(parts[:PARTS], parts_of(PLAN, key=KEY), strict=True))
    assert sorted(map(len, parts[:PARTS])) == [250, 250, 251, 251]
    other = parts_of(PLAN, key=bytes(32))[0]
    assert len(np.intersect1d(other, parts[0])) < 120  # 63 are expected where the keys have nothing in common


def test_parts_that_are_drawn_whole():
    whole = dataclasses.replace(PLAN, dataset_size=100)
    assert whole.part_rate == 1.0
    assert (drawn(whole, key=KEY, step=3) == parts_of(whole, key=KEY)[3]).all()


def test_a_pass_deals_once_and_draws_as_its_steps_do(monkeypatch):
    dealt = []

    def deal(mechanism, *, key):
        dealt.append(key)
        return parts_of(mechanism, key=key)

    monkeypatch.setattr("groupclip.sampling.batches.parts_of", deal)
    monkeypatch.setattr("groupclip.sampling.draws.parts_of", deal)
    short = dataclasses.replace(PLAN, steps=2 * PARTS + 1)
    passes = logical_batches(range(SIZE), short, SIZE, start=1, key=KEY)
    for _ in range(2):
        rows = {batch.step: [i for piece in batch for i in piece.tolist()] for batch in passes}
        assert rows == {step: drawn(PLAN, key=KEY, step=step, parts=parts_of(PLAN, key=KEY)).tolist() for step in range(1, 9)}
    assert dealt == [KEY, KEY]


@pytest.mark.parametrize("users", [None, [f"person {i % 60}" for i in range(120)]])
def test_what_the_loop_gets_comes_every_few_steps_at_most(users):
    """Batches of samples, and of users with all of theirs: the steps of each are a multiple of the bands apart."""
    size, unit = (120, "sample") if users is None else (60, "user")
    plan = Mechanism(
        dataset_size=size, expected_batch_size=12, steps=30, noise_multiplier=1.0, adjacency="zero-out", bands=5, unit=unit
    )
    steps = {}
    for batch in logical_batches(list(range(120)), plan, 16, users=users):
        for rows in batch:
            for index in rows.flatten().tolist():
                steps.setdefault(index, []).append(batch.step)
    assert len(steps) > 100
    assert all(len({step % 5 for step in found}) == 1 for found in steps.values())


def test_each_iterator_deals_anew():
    plan = Mechanism(dataset_size=120, expected_batch_size=24, steps=5, noise_multiplier=1.0, adjacency="zero-out", bands=5)
    batches = logical_batches(list(range(120)), plan, 120)
    first, second = ([set(torch.cat(list(batch)).tolist()) for batch in batches] for _ in range(2))
    assert first != second and set().union(*first) == set(range(120))
