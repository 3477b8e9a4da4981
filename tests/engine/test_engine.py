"""What holds for any model, grouping and batch: drawn at random, or with samples as bad as they come."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import groupclip as gc
import oracle
from check_engine import CORE, ENTRIES, Clipped, between, clipped_by_engine, faults, grouped, members
from groupclip.partition.choose import partition
from groupclip.partition.groups import Partition
from models import Batch, Entry
from strategies import entries, groupings, splits

CLIPS = st.sampled_from(sorted(oracle.CLIP))
METHODS = st.sampled_from(["auto", "gram", "instantiated"])
quick = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
thorough = settings(deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])


def drawn_groups(data: st.DataObject, model: nn.Module) -> Partition:
    groups = partition(model, data.draw(groupings(model)))
    names = [name for group in groups for name in groups[group]]
    return groups.with_methods({name: data.draw(METHODS) for name in names})


def check_against_the_loop(entry: Entry, clip: str, size: int, data: st.DataObject) -> None:
    model, batch = entry.model(torch.float64), entry.batch(size, torch.float64)
    groups = drawn_groups(data, model)
    norms = oracle.clipped_sum(model, entry.losses, batch, members(groups)).norms
    thresholds = between(norms)
    want = oracle.clipped_sum(model, entry.losses, batch, members(groups), clip, thresholds)
    # Relative to the samples: a gradient of length 1e-9 normalised to R carries its own rounding.
    smallest = min((n[n > 0].min().item() for n in norms.values() if (n > 0).any()), default=1.0)
    tolerance = 1e-10 * max(1.0, 1e-4 / smallest)
    got = clipped_by_engine(model, entry.losses, batch, groups, clip, thresholds, data.draw(splits(size)))
    assert faults(got, want, groups, thresholds, tolerance) == []


@quick
@given(entries(), CLIPS, st.integers(1, 6), st.data())
def test_random_models_equal_the_loop(entry: Entry, clip: str, size: int, data: st.DataObject) -> None:
    check_against_the_loop(entry, clip, size, data)


@pytest.mark.slow
@thorough
@given(entries(), CLIPS, st.integers(1, 9), st.data())
def test_many_random_models_equal_the_loop(entry: Entry, clip: str, size: int, data: st.DataObject) -> None:
    check_against_the_loop(entry, clip, size, data)


@quick
@given(entries(), CLIPS, st.data())
def test_micro_batches_change_nothing(entry: Entry, clip: str, data: st.DataObject) -> None:
    model, batch = entry.model(torch.float64), entry.batch(6, torch.float64)
    groups = drawn_groups(data, model)
    whole = clipped_by_engine(model, entry.losses, batch, groups, clip)
    parts = clipped_by_engine(model, entry.losses, batch, groups, clip, split=data.draw(splits(6)))
    assert_same(whole, parts)


@quick
@given(entries(), CLIPS, st.permutations(range(5)), st.data())
def test_order_of_samples_permutes_norms_and_leaves_sums(
    entry: Entry, clip: str, order: list[int], data: st.DataObject
) -> None:
    model, batch = entry.model(torch.float64), entry.batch(5, torch.float64)
    groups = drawn_groups(data, model)
    index = torch.tensor(order)
    first = clipped_by_engine(model, entry.losses, batch, groups, clip)
    second = clipped_by_engine(model, entry.losses, tuple(t[index] for t in batch), groups, clip)
    assert_same(Clipped(first.sums, {group: norms[index] for group, norms in first.norms.items()}), second)


@quick
@given(entries(), CLIPS, st.data())
def test_one_group_is_flat_clipping(entry: Entry, clip: str, data: st.DataObject) -> None:
    """Flat clipping, worked out here from the samples; its squared norm is that of all groups together."""
    model, batch = entry.model(torch.float64), entry.batch(3, torch.float64)
    samples = oracle.per_sample_gradients(model, entry.losses, batch)
    flat = torch.stack([torch.cat([g.flatten() for g in sample.values()]) for sample in samples])
    norms = flat.norm(dim=1)
    factors = torch.tensor([oracle.CLIP[clip](norm, 1.0) for norm in norms.tolist()], dtype=torch.float64)
    got = clipped_by_engine(model, entry.losses, batch, partition(model, "all-layer"), clip)
    together = torch.cat([got.sums[name].flatten() for name in samples[0]])
    torch.testing.assert_close(together, factors @ flat, rtol=0, atol=1e-10)
    torch.testing.assert_close(got.norms["all"], norms, rtol=1e-10, atol=1e-13)
    several = clipped_by_engine(model, entry.losses, batch, drawn_groups(data, model), clip)
    total = torch.stack([norm.square() for norm in several.norms.values()]).sum(0).sqrt()
    torch.testing.assert_close(total, norms, rtol=1e-10, atol=1e-13)


def assert_same(first: Clipped, second: Clipped) -> None:
    # The samples' own rounding (1e-16 / norm) may be normalised up to R.
    smallest = min((n[n > 0].min().item() for n in first.norms.values() if (n > 0).any()), default=1.0)
    tolerance = 1e-10 * max(1.0, 1e-4 / smallest)
    for name, total in first.sums.items():
        torch.testing.assert_close(second.sums[name], total, rtol=0, atol=tolerance)
    for group, norms in first.norms.items():
        torch.testing.assert_close(second.norms[group], norms, rtol=1e-10, atol=1e-13)


# ------------------------------------------------------------------ no sample contributes more than R


def contributions(
    model: nn.Module,
    losses: oracle.Losses,
    batch: Batch,
    groups: Partition,
    clip: str,
    thresholds: dict[str, float],
) -> dict[str, Tensor]:
    """Group -> [B]: how far the group's clipped sum moves when sample i is taken out, in units of R_m."""
    size = len(batch[0])
    whole = clipped_by_engine(model, losses, batch, groups, clip, thresholds)
    distances: dict[str, list[float]] = {group: [] for group in groups}
    for i in range(size):
        rest = torch.tensor([j for j in range(size) if j != i])
        without = clipped_by_engine(model, losses, tuple(t[rest] for t in batch), groups, clip, thresholds)
        for group in groups:
            moved = [
                (whole.sums[n].double() - without.sums[n].double()).square().sum() for n in groups[group]
            ]
            distances[group].append(float(torch.stack(moved).sum().sqrt()) / thresholds[group])
    return {group: torch.tensor(found, dtype=torch.float64) for group, found in distances.items()}


def scaled_up(entry: Entry) -> oracle.Losses:
    """The losses, each times the sample's factor, which is the last tensor of the batch."""
    return lambda model, batch: entry.losses(model, batch[:-1]) * batch[-1]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("clip", oracle.CLIP)
@pytest.mark.parametrize("name", CORE)
def test_no_sample_contributes_more_than_its_threshold(name: str, clip: str) -> None:
    """float32, samples scaled from 1e-6 to 1e6, unequal thresholds; one sample is taken out."""
    entry = ENTRIES[name]
    model = entry.model()
    factors = torch.tensor([1.0, 1e6, 1e-6, 1e6, 30.0])
    batch = (*entry.batch(5), factors)
    losses = scaled_up(entry)
    for style in ("all-layer", "layer-wise", "function"):
        groups = grouped(model, style)
        thresholds = {group: 0.01 * 3**i for i, group in enumerate(groups)}
        moved = contributions(model, losses, batch, groups, clip, thresholds)
        worst = {group: found.max().item() for group, found in moved.items()}
        assert max(worst.values()) <= 1 + 1e-5, worst
        if clip in ("automatic", "flat-normalised"):
            assert min(found[1].item() for found in moved.values()) > 0.99, (
                "the bound isn't reached: clipped too much"
            )


@quick
@given(entries(), CLIPS, st.lists(st.floats(1e-6, 1e6), min_size=3, max_size=3), st.data())
def test_no_sample_of_a_random_model_contributes_more(
    entry: Entry, clip: str, factors: list[float], data: st.DataObject
) -> None:
    model = entry.model()
    groups = drawn_groups(data, model)
    thresholds = {group: data.draw(st.floats(1e-2, 1e2)) for group in groups}
    batch = (*entry.batch(3), torch.tensor(factors))
    moved = contributions(model, scaled_up(entry), batch, groups, clip, thresholds)
    for group, found in moved.items():
        # The sums of the two runs are rounded: 1e-6 of what is in them, which may be 3 R.
        assert found.max() <= 1 + 1e-5, (group, found)


def test_twin_without_clipping_a_sample_contributes_more() -> None:
    """What the checks above must reject: the plain sum of gradients, as a threshold out of reach gives it."""
    entry = ENTRIES["mlp"]
    model = entry.model()
    factors = torch.tensor([1.0, 1e6, 1.0])
    batch, groups = (*entry.batch(3), factors), grouped(model, "layer-wise")
    plain = contributions(model, scaled_up(entry), batch, groups, "abadi", dict.fromkeys(groups, 1e9))
    assert all(found.max() * 1e9 > 1 + 1e-5 for found in plain.values())


# ------------------------------------------------------------------ neighbouring batches


@pytest.mark.one_in(3)
@pytest.mark.parametrize("clip", oracle.CLIP)
@pytest.mark.parametrize("name", CORE)
def test_neighbouring_batches_differ_by_the_sensitivity_at_most(name: str, clip: str) -> None:
    """The sum over all groups moves by ||(R_1 .. R_M)|| (add, remove, zero out), twice that (replace)."""
    entry = ENTRIES[name]
    model = entry.model()
    groups = grouped(model, "layer-wise")
    thresholds = {group: 0.1 + 0.1 * (i % 3) for i, group in enumerate(groups)}
    bound = math.sqrt(sum(r * r for r in thresholds.values()))
    pool = entry.batch(7)
    weights = torch.tensor([1.0, 1e4, 1.0, 1.0, 1e6, -1e6, 1.0])
    losses = scaled_up(entry)

    def total(chosen: list[int], zeroed: int | None = None) -> Tensor:
        index = torch.tensor(chosen)
        factors = torch.where(index == (-1 if zeroed is None else zeroed), 0.0, weights[index])
        part = (*(t[index] for t in pool), factors)
        got = clipped_by_engine(model, losses, part, groups, clip, thresholds)
        return torch.cat([got.sums[n].double().flatten() for n in got.sums])

    base = total([0, 1, 2, 4])
    slack = 1 + 1e-5
    assert (total([0, 1, 2, 4, 5]) - base).norm() <= bound * slack  # add
    assert (total([0, 2, 4]) - base).norm() <= bound * slack  # remove
    assert (total([0, 1, 2, 4], zeroed=4) - base).norm() <= bound * slack  # zero out
    assert (total([0, 1, 2, 5]) - base).norm() <= 2 * bound * slack  # replace
    if clip == "flat-normalised":
        assert (total([0, 1, 2, 4, 5]) - base).norm() >= 0.99 * bound, "the bound isn't reached"


@pytest.mark.parametrize("name", CORE)
def test_a_copy_of_a_sample_counts_twice(name: str) -> None:
    """Each sample is clipped for itself: a batch of copies is that many times one of them."""
    entry = ENTRIES[name]
    model = entry.model(torch.float64)
    one = entry.batch(1, torch.float64)
    groups = grouped(model, "layer-wise")
    single = clipped_by_engine(model, entry.losses, one, groups)
    thrice = clipped_by_engine(model, entry.losses, tuple(t.repeat_interleave(3, 0) for t in one), groups)
    for n, total in thrice.sums.items():
        torch.testing.assert_close(total, 3 * single.sums[n], rtol=1e-10, atol=1e-12)


# ------------------------------------------------------------------ samples that aren't finite


@pytest.mark.one_in(4)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("clip", oracle.CLIP)
@pytest.mark.parametrize("name", CORE)
def test_a_sample_that_is_not_finite_adds_exactly_zero(name: str, clip: str, bad: float) -> None:
    entry = ENTRIES[name]
    model = entry.model()
    for style in ("all-layer", "param-wise"):
        groups = grouped(model, style)
        factors = torch.tensor([1.0, bad, 1.0, 1.0])
        clean, batch = torch.tensor([0, 2, 3]), entry.batch(4)
        losses = scaled_up(entry)
        spoilt = clipped_by_engine(model, losses, (*batch, factors), groups, clip, 0.5)
        want = clipped_by_engine(
            model, losses, (*(t[clean] for t in batch), factors[clean]), groups, clip, 0.5
        )
        for n, total in spoilt.sums.items():
            assert torch.isfinite(total).all(), n
            torch.testing.assert_close(total, want.sums[n], rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [1, 3])
def test_a_batch_in_which_nothing_is_finite_adds_exactly_zero(size: int) -> None:
    entry = ENTRIES["cnn-groupnorm"]
    model = entry.model()
    x, labels = entry.batch(size)
    got = clipped_by_engine(model, entry.losses, (x * math.nan, labels), grouped(model, "layer-wise"))
    assert all(torch.equal(total, torch.zeros_like(total)) for total in got.sums.values())


@pytest.mark.parametrize("name", ["mlp", "cnn-groupnorm", "vit"])
def test_non_finite_inputs_leave_the_model_finite(name: str) -> None:
    """Not only losses: an input that is NaN or inf goes through every layer. Then a private step is made."""
    entry = ENTRIES[name]
    model = entry.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mechanism = gc.Mechanism(dataset_size=10, expected_batch_size=5, steps=3, noise_multiplier=1.0)
    engine = gc.attach(model, optimizer, "layer-wise", mechanism)
    x, labels = entry.batch(5)
    x = x.index_fill(0, torch.tensor([1]), math.nan).index_fill(0, torch.tensor([3]), math.inf)
    engine.backward(entry.losses(model, (x, labels)))
    optimizer.step()
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert engine.ledger is not None and engine.ledger.steps == 1
