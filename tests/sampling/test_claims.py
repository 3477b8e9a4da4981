"""Which steps may call their batch groupclip's own."""

import gc
import itertools
import weakref

import pytest
import torch

import groupclip.sampling.claims
from groupclip import attach
from groupclip.errors import PrivacyViolation
from groupclip.privacy.mechanism import Mechanism
from groupclip.sampling import batches as sampling
from groupclip.sampling.batches import logical_batches, poisson_batches
from groupclip.sampling.claims import Owner
from groupclip.sampling.draws import draw
from groupclip.sampling.marks import marks

KEY = bytes(range(32))
PLAN = Mechanism(dataset_size=200, expected_batch_size=20, steps=8)


@pytest.fixture(autouse=True)
def fixed_keys(monkeypatch):
    """What the operating system gives is the same every time; batches under a caller's key aren't claimed."""
    monkeypatch.setattr(sampling, "new_key", lambda: KEY)
    monkeypatch.setattr(groupclip.sampling.claims, "_runs", [])  # none of other tests is left to this one's engines
    monkeypatch.setattr(groupclip.sampling.claims, "_joined", weakref.WeakSet())
    ENGINES.clear()
    join(PLAN, 1), join(PLAN, 2)


ENGINES: dict[tuple[Mechanism, int], Owner] = {}


def join(mechanism, engine):
    """One is attached: before the batches that it may claim are drawn."""
    ENGINES[mechanism, engine] = Owner(mechanism)


def claim(mechanism, engine, samples, passes=()):
    fits = ENGINES[mechanism, engine].fits(samples, passes)
    ENGINES[mechanism, engine].claim()
    return fits


def sampled(mechanism=PLAN, microbatch=7, start=0):
    return iter(poisson_batches(list(range(mechanism.dataset_size)), mechanism, microbatch, start=start))


def test_batches_under_a_key_that_was_given_are_not_groupclips():
    """Who gave the key may know it, and then the batches are no secret."""
    for logical_batch in poisson_batches(list(range(200)), PLAN, key=KEY):
        assert not claim(PLAN, 1, sum(len(batch) for batch in logical_batch))


def test_a_step_that_could_not_be_counted_may_be_taken_again():
    owner = ENGINES[PLAN, 1]
    for logical_batch in sampled():
        seen = sum(len(batch) for batch in logical_batch)
        assert owner.fits(seen) and owner.fits(seen)  # the first one wasn't charged
        owner.claim()
        assert not owner.fits(seen)


def test_a_step_after_batches_that_were_left_out_is_the_users_also_when_it_is_tried_again():
    owner = ENGINES[PLAN, 1]
    for number, logical_batch in enumerate(sampled()):
        seen = sum(len(batch) for batch in logical_batch)
        if number in (1, 2):
            assert not any(owner.fits(seen) for _ in range(number))
        if number == 2:
            return


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
    join(mechanism, 1)
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
    join(PLAN, 1)
    assert claim(PLAN, 1, sum(len(batch) for batch in next(run)))


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
    join(other, 2), join(stranger, 1)
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


# ------------------------------------------------------------------ begun anew


def taken(logical_batch, engine=1, mechanism=PLAN):
    """A step on all of a logical batch."""
    return claim(mechanism, engine, sum(len(batch) for batch in logical_batch))


@pytest.mark.parametrize("kept", ["dropped", "kept", "closed"])
@pytest.mark.parametrize("before", [0, 2])
def test_a_sampler_begun_anew_after_a_batch_was_given_up(before, kept):
    """Which batches run out of memory depends on what is in them; the new iterator draws others in their place."""
    ENGINES.pop((PLAN, 2))
    run = sampled()
    for _ in range(before):
        assert taken(next(run))
    list(next(run))  # no step
    again = None
    if kept == "closed":
        run.close()
    elif kept == "dropped":
        run = None
    again = sampled(start=before)
    assert [taken(logical_batch) for logical_batch in again] == [False] + [True] * (PLAN.steps - before - 1)
    del run


def test_batches_given_up_again_and_again():
    """Until one comes that is small enough."""
    ENGINES.pop((PLAN, 2))
    claims, largest = [], 18
    while len(claims) < PLAN.steps:
        logical_batch = next(sampled(start=len(claims)))
        parts = list(logical_batch)
        if sum(len(part) for part in parts) <= largest:
            claims.append(claim(PLAN, 1, sum(len(part) for part in parts)))
        largest += 1
    assert not all(claims)


def test_empty_batches_drawn_again(monkeypatch):
    mechanism = Mechanism(dataset_size=40, expected_batch_size=1.0, steps=30)
    join(mechanism, 1)
    claims, redrawn, key = [], 0, bytearray(KEY)
    for step in range(mechanism.steps):
        while True:
            key[0] += 1
            monkeypatch.setattr(sampling, "new_key", lambda: bytes(key))
            logical_batch = next(sampled(mechanism, start=step))
            seen = sum(len(batch) for batch in logical_batch)
            if seen:
                break
            redrawn += 1
        claims.append(claim(mechanism, 1, seen))
    assert redrawn > 0 and claims.count(False) >= 1


def test_the_smaller_of_two_batches(monkeypatch):
    """Two iterators at once, and a choice between them."""
    ENGINES.pop((PLAN, 2))
    one = sampled()
    monkeypatch.setattr(sampling, "new_key", lambda: bytes(32))
    two = sampled()
    claims = []
    for pair in zip(one, two, strict=True):
        sizes = [sum(len(part) for part in logical_batch) for logical_batch in pair]
        claims.append(claim(PLAN, 1, min(sizes)))
    assert not any(claims)


def test_a_sampler_begun_anew_after_every_batch_had_a_step():
    """A loop in several parts; one that is broken off after a step; one that ends."""
    run = sampled()
    for _ in range(2):
        assert taken(next(run))
    for logical_batch in sampled(start=2):
        assert taken(logical_batch)
        if logical_batch.step == 4:
            break
    assert all(taken(logical_batch) for logical_batch in sampled(start=5))
    assert taken(next(run))  # and the first again


def test_what_another_engine_gives_up_is_not_this_ones():
    first, second = sampled(), sampled(microbatch=9)
    assert taken(next(first), 1) and taken(next(second), 2)
    list(next(first))
    first.close()
    assert taken(next(second), 2)
    assert [taken(logical_batch, 1) for logical_batch in sampled(start=1)] == [False] + [True] * (PLAN.steps - 2)


def test_a_state_loaded_after_a_batch_was_given_up():
    """A new engine that goes on where the old one was, in the same process: the plan knows what was drawn."""
    run = sampled()
    assert taken(next(run)) and taken(next(run))
    list(next(run))
    run.close()
    join(PLAN, 3)
    assert taken(next(sampled()), 3)  # of a training of its own
    for steps, whose in ((3, True), (2, False)):  # the third was charged, or comes again
        join(PLAN, 4)
        ENGINES[PLAN, 4].training, ENGINES[PLAN, 4].resumed_at = ENGINES[PLAN, 1].training, steps
        assert taken(next(sampled(start=steps)), 4) == whose


TWIN = torch.randn(200, 3)


def engine_for(plan, state=None):
    """A model, an optimizer and an engine that goes on from a state of another."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = attach(model, optimizer, "all-layer", plan)
    if state is not None:
        engine.load_state_dict(state)
    return model, optimizer, engine


def step_on(run, logical_batch):
    model, optimizer, engine = run
    for part in logical_batch:
        engine.backward(model(part).square().sum(1))
    optimizer.step()
    optimizer.zero_grad()
    return engine.ledger.sampling


def failing_run(given_up):
    """Two steps, and batches that were read but ran out of memory: what the run saved, and its iterator."""
    plan = Mechanism(dataset_size=200, expected_batch_size=20, steps=8, noise_multiplier=1.0)
    first = engine_for(plan)
    batches = iter(poisson_batches(TWIN, plan, 7))
    assert [step_on(first, next(batches)) for _ in range(2)] == ["groupclip"] * 2
    for _ in range(given_up):
        list(next(batches))
    first[2].detach()
    return plan, first[2].state_dict(), batches


@pytest.mark.parametrize("goes_on", ["in another iterator", "in the same"])
@pytest.mark.parametrize("given_up", [0, 1, 3])
def test_an_engine_that_loads_a_state_after_batches_were_given_up(given_up, goes_on):
    """What was drawn for the old engine, and left out, is drawn again or skipped by the new one: by what is in it, perhaps."""
    plan, state, batches = failing_run(given_up)
    second = engine_for(plan, state)
    batches = batches if goes_on == "in the same" else iter(poisson_batches(TWIN, plan, 7, start=2))
    expected = "mixed" if given_up else "groupclip"
    assert step_on(second, next(batches)) == expected
    assert step_on(second, next(batches)) == expected and second[2].ledger.steps_by_sampler["user"] == bool(given_up)


def test_what_another_training_left_out_is_nothing_to_one_that_goes_on():
    """They have equal plans, as trainings from several seeds do; the other broke off later than this one."""
    plan, _, _ = failing_run(given_up=2)
    first = engine_for(plan)
    assert step_on(first, next(iter(poisson_batches(TWIN, plan, 7)))) == "groupclip"
    second = engine_for(plan, first[2].state_dict())
    assert step_on(second, next(iter(poisson_batches(TWIN, plan, 7, start=1)))) == "groupclip"
    older = {key: value for key, value in second[2].state_dict().items() if key != "training"}
    third = engine_for(plan, older)  # a state of an older version
    assert step_on(third, next(iter(poisson_batches(TWIN, plan, 7, start=2)))) == "groupclip"


@pytest.mark.parametrize("counted", [True, False])
def test_another_training_that_broke_off_in_its_first_step_after_a_state_was_loaded(counted):
    """No step says whose that batch was: the engine that was alone, or the one that counts it, when it goes on."""
    plan, state, _ = failing_run(given_up=0)
    if counted:
        idle = engine_for(plan)  # so that none is alone
    broken = engine_for(plan, state)
    list(next(iter(poisson_batches(TWIN, plan, 7, start=2))))
    broken[2].detach()
    if counted:
        again = engine_for(plan, state)
        again[2].ledger.record("groupclip")
        assert step_on(again, next(iter(poisson_batches(TWIN, plan, 7, start=3)))) == "groupclip"
        idle[2].detach()
    first = engine_for(plan)
    assert step_on(first, next(iter(poisson_batches(TWIN, plan, 7)))) == "groupclip"
    second = engine_for(plan, first[2].state_dict())
    assert step_on(second, next(iter(poisson_batches(TWIN, plan, 7, start=1)))) == "groupclip"


@pytest.mark.parametrize(("counted", "whose"), [(0, "mixed"), (1, "mixed"), (2, "groupclip")])
def test_batches_that_were_lost_can_be_counted(counted, whose):
    """They are paid for then, as ``groupclip train`` pays for the steps of a crash."""
    plan, state, _ = failing_run(given_up=2)
    second = engine_for(plan, state)
    for _ in range(counted):
        second[2].ledger.record("groupclip")
    batches = poisson_batches(TWIN, plan, 7, start=second[2].ledger.steps)
    assert step_on(second, next(iter(batches))) == whose


# ------------------------------------------------------------------ the same batch again


@pytest.mark.parametrize("microbatch", [None, 1, 3, 7, 50])
@pytest.mark.parametrize("read", [0, 1, 3])
def test_a_batch_begun_again(read, microbatch):
    """After it ran out of memory, say: the same samples, in smaller parts."""
    for logical_batch, whole in zip(sampled(), sampled(), strict=True):
        list(itertools.islice(logical_batch, read))
        parts = list(logical_batch.again(microbatch))
        assert torch.equal(torch.cat(parts), torch.cat(list(whole)))
        assert max(len(part) for part in parts) <= min(7, microbatch or 7)
        assert claim(PLAN, 1, sum(len(part) for part in parts))


def test_an_old_iteration_after_a_new_one():
    logical_batch = next(sampled())
    old = iter(logical_batch)
    next(old)
    logical_batch.again()
    with pytest.raises(PrivacyViolation, match="begun again by again"):
        next(old)
    with pytest.raises(PrivacyViolation, match=r"iterated twice.*batch\.again\(\)"):
        list(logical_batch), list(logical_batch)


@pytest.mark.parametrize("microbatch", [0, -1, 2.0, True])
def test_again_takes_a_whole_number(microbatch):
    with pytest.raises(ValueError, match="must be a whole number >= 1"):
        next(sampled()).again(microbatch)


# ------------------------------------------------------------------ which samples


def given(choose, transform=lambda x: x, data=None, steps=3, microbatch=5, mechanism=PLAN):
    """Claims of steps in which the model is called with what ``choose`` makes of a logical batch's micro-batches."""
    data = torch.randn(mechanism.dataset_size, 4) if data is None else data
    dataset = torch.utils.data.TensorDataset(data, torch.arange(len(data)))
    found = []
    for logical_batch in itertools.islice(poisson_batches(dataset, mechanism, microbatch), steps):
        parts = [part[0] for part in logical_batch]
        called = [transform(x) for x in choose(parts)]
        assert sum(map(len, called)) == sum(map(len, parts))  # their number tells nothing
        found.append(claim(mechanism, 1, sum(map(len, called)), [marks(x) for x in called]))
    return found


def twice(parts):
    """The first in place of the second, as for one with a nan in it."""
    return [parts[0], parts[0], *parts[2:]]


LAST = []


def older(parts):
    """One of the logical batch before in place of the first."""
    kept, LAST[:] = list(LAST), parts
    return [kept[0], *parts[1:]] if kept else parts


SAME = {
    "as they came": lambda parts: parts,
    "in another order": lambda parts: parts[::-1],
    "samples in another order": lambda parts: [part.flip(0) for part in parts],
    "in halves": lambda parts: [half for part in parts for half in part.split(2)],
    "joined": lambda parts: [torch.cat(parts)],
    "copied": lambda parts: [part.clone() for part in parts],
}
OTHER = {
    "a micro-batch twice": twice,
    "one of the batch before": older,
    "half of one twice": lambda parts: [torch.cat([part[:2], part[:2], part[4:]]) for part in parts[:1]] + parts[1:],
    "a sample for another": lambda parts: [part[[0, *range(len(part) - 1)]] for part in parts],
    "resampled by weight": lambda parts: [
        torch.cat(parts)[torch.zeros(sum(map(len, parts))).long()],
    ],
    "put into its place": lambda parts: [part.copy_(parts[0][: len(part)]) for part in parts],
}


@pytest.mark.parametrize("shape", [(4,), (3, 2), (1, 8, 8), (2000,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("habit", SAME)
def test_the_samples_that_were_drawn(habit, dtype, shape):
    data = (torch.randn(200, *shape) * 1000).to(dtype)
    assert given(SAME[habit], data=data) == [True] * 3


@pytest.mark.parametrize("shape", [(4,), (3, 2), (1, 8, 8), (2000,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("habit", OTHER)
def test_other_samples_of_the_same_number(habit, dtype, shape):
    LAST.clear()
    data = (torch.randn(200, *shape) * 1000).to(dtype)
    assert given(OTHER[habit], data=data) == [habit == "one of the batch before", False, False]


@pytest.mark.parametrize("transform", [lambda x: x.double(), lambda x: x * 2 - 1, lambda x: x[:, :2], torch.relu])
def test_what_was_computed_from_the_samples_is_counted_alone(transform):
    """Stated as such: their number is compared, as which samples they are can't be told."""
    assert given(twice, transform) == [True] * 3
    assert given(SAME["as they came"], transform) == [True] * 3


def test_layouts_of_memory_are_no_matter():
    data = torch.randn(200, 3, 20, 20)
    assert given(SAME["as they came"], lambda x: x.to(memory_format=torch.channels_last), data=data) == [True] * 3
    assert given(twice, lambda x: x.to(memory_format=torch.channels_last), data=data) == [False] * 3


@pytest.mark.parametrize("kinds", [1, 3, 50])
def test_rows_that_repeat_in_the_data_raise_no_alarm(kinds):
    """Words, categories, empty pictures: a step on all of them is groupclip's."""
    data = torch.randint(kinds, (200, 1))
    assert given(SAME["joined"], data=data) == [True] * 3
    assert given(SAME["as they came"], lambda x: x // 2, data=data) == [True] * 3
    assert given(SAME["as they came"], lambda x: x.float(), data=data) == [True] * 3


def test_users_samples_are_told_apart():
    plan = Mechanism(dataset_size=50, expected_batch_size=20, steps=3, unit="user")
    join(plan, 1)
    data, owners = torch.randn(200, 4), [i % 50 for i in range(200)]
    for habit, whose in ((SAME["as they came"], True), (twice, False)):
        run = logical_batches(torch.utils.data.TensorDataset(data), plan, 20, users=owners)
        for logical_batch in run:
            parts = habit([part[0] for part in logical_batch])
            assert claim(plan, 1, sum(map(len, parts)), [marks(part) for part in parts]) == whose


def test_a_padded_batchs_filling_is_no_alarm():
    plan = Mechanism(
        dataset_size=200, expected_batch_size=20, steps=3, sampling="truncated-poisson", max_batch_size=40,
        adjacency="zero-out",
    )  # fmt: skip
    join(plan, 1)
    for logical_batch in logical_batches(torch.utils.data.TensorDataset(torch.randn(200, 4)), plan, 40, padded=True):
        parts = [part.samples[0] for part in logical_batch]
        assert claim(plan, 1, sum(map(len, parts)), [marks(part) for part in parts])
