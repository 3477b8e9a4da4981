"""Which steps may call their batch groupclip's own."""

import gc
import itertools
import weakref

import pytest
import torch

from groupclip import attach, sampling
from groupclip.draws import draw
from groupclip.mechanism import Mechanism
from groupclip.sampling import claim, poisson_batches

KEY = bytes(range(32))
PLAN = Mechanism(dataset_size=200, expected_batch_size=20, steps=8)


@pytest.fixture(autouse=True)
def fixed_keys(monkeypatch):
    """What the operating system gives is the same every time; batches under a caller's key aren't claimed."""
    monkeypatch.setattr(sampling, "new_key", lambda: KEY)


def sampled(mechanism=PLAN, microbatch=7):
    return iter(poisson_batches(list(range(mechanism.dataset_size)), mechanism, microbatch))


def test_batches_under_a_key_that_was_given_are_not_groupclips():
    """Who gave the key may know it, and then the batches are no secret."""
    for logical_batch in poisson_batches(list(range(200)), PLAN, key=KEY):
        assert not claim(PLAN, 1, sum(len(batch) for batch in logical_batch))


def test_a_step_on_a_whole_batch_is_groupclips_once():
    for logical_batch in sampled():
        seen = sum(len(batch) for batch in logical_batch)
        assert claim(PLAN, 1, seen)
        assert not claim(PLAN, 1, seen)


def test_a_step_inside_the_inner_loop_spoils_the_batch():
    run = sampled(microbatch=10)
    seen, claims = 0, []
    for batch in next(run):
        seen += len(batch)
        claims.append(claim(PLAN, 1, len(batch)))
    assert len(claims) > 1  # of this key
    assert not any(claims) and not claim(PLAN, 1, seen)
    assert claim(PLAN, 1, sum(len(batch) for batch in next(run)))  # it was stepped on, so it wasn't left out


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
    """Which batch runs out of memory depends on what is in it: leaving it out is a choice of batches, and is counted once."""
    run = sampled()
    seen = 0
    with pytest.raises(RuntimeError, match="out of memory"):
        for batch in next(run):
            seen += len(batch)
            raise RuntimeError("out of memory")
    claims = [claim(PLAN, 1, sum(len(batch) for batch in next(run))) for _ in range(3)]
    assert claims == [False, True, True]


@pytest.mark.parametrize("left_out", [1, 3])
def test_batches_that_are_left_out(left_out):
    """A loop that skips batches, empty ones say, chooses its batches by what is in them."""
    run = sampled()
    claims = []
    for step, logical_batch in enumerate(run):
        seen = sum(len(batch) for batch in logical_batch)
        if not 2 <= step < 2 + left_out:
            claims.append(claim(PLAN, 1, seen))
    assert claims == [True, True, False] + [True] * (PLAN.steps - 3 - left_out)


def test_batches_before_an_engine_was_there_are_not_left_out():
    run = sampled()
    next(run), next(run)
    since = sampling.drawn_so_far()
    assert claim(PLAN, 1, sum(len(batch) for batch in next(run)), since)


def test_a_data_set_that_fails_hands_nothing_out():
    def collate(samples: list[int]) -> list[int]:
        raise OSError("unreadable")

    run = iter(poisson_batches(list(range(200)), PLAN, 200, collate=collate))
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
    for one, two in zip(sampled(), sampled(microbatch=9), strict=True):
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


def test_a_batch_drawn_before_an_engine_vouches_for_none_of_its_steps():
    """The last batch of one run is still there when another engine with the same plan begins."""
    plan = Mechanism(dataset_size=40, expected_batch_size=40, steps=2, noise_multiplier=1.0)  # every batch: 40 samples
    x = torch.randn(40, 3)

    def attached():
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer, attach(model, optimizer, "all-layer", plan)

    first = attached()
    for logical_batch in poisson_batches(x, plan, microbatch=40):
        for part in logical_batch:
            first[2].backward(first[0](part).square().sum(1))
        first[1].step()
        first[1].zero_grad()
    second = attached()
    second[2].backward(second[0](x).square().sum(1))
    second[1].step()
    assert first[2].ledger.sampling == "groupclip"
    assert second[2].ledger.sampling == "user"
