"""The laws of truncated batches and of batches without replacement; padded batches.

Each two-sided test has a false-alarm rate of 1e-6; keys are fixed, so what passes once passes always.
"""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import TensorDataset

import groupclip as gc
from groupclip.errors import PrivacyViolation
from groupclip.privacy.mechanism import Mechanism
from groupclip.sampling import batches as sampling
from groupclip.sampling import draws
from groupclip.sampling.batches import logical_batches, poisson_batches
from groupclip.sampling.draws import draw, drawn, subset
from groupclip.sampling.readers import Padded

KEY, ALPHA, STEPS, SIZE = bytes(range(32)), 1e-6, 3_000, 60
TRUNCATED = Mechanism(
    dataset_size=SIZE, expected_batch_size=12, steps=STEPS, sampling="truncated-poisson", adjacency="zero-out", max_batch_size=14
)  # fmt: skip
FIXED = Mechanism(
    dataset_size=SIZE, expected_batch_size=12, steps=STEPS, sampling="without-replacement", adjacency="replace-one"
)


def counts(batches: list[np.ndarray]) -> np.ndarray:
    return np.bincount(np.concatenate(batches), minlength=SIZE)


def uniform(batches: list[np.ndarray]) -> float:
    """P-value: every sample enters as often. Given the sizes b, entries of a step have covariance -1/(n-1)."""
    sizes = np.array([len(batch) for batch in batches])
    expected = sizes.sum() / SIZE
    variance = (sizes / SIZE * (1 - sizes / SIZE)).sum() * SIZE / (SIZE - 1)
    return float(stats.chi2(SIZE - 1).sf(((counts(batches) - expected) ** 2).sum() / variance))


def pairs(batches: list[np.ndarray]) -> float:
    """P-value, two-sided: neighbours i, i + 1 (i even) enter together as often as any two."""
    together = sum(len(np.intersect1d(batch[batch % 2 == 0] + 1, batch)) for batch in batches)
    sizes = np.array([len(batch) for batch in batches])
    chance = (sizes * (sizes - 1)).sum() / (SIZE * (SIZE - 1)) * (SIZE // 2)
    return float(2 * stats.poisson.sf(together - 1, chance)) if together > chance else 1.0


def batches_of(mechanism: Mechanism) -> list[np.ndarray]:
    return [drawn(mechanism, key=KEY, step=step) for step in range(STEPS)]


def test_truncation_keeps_the_law_below_the_cap_and_picks_uniformly_above():
    batches = batches_of(TRUNCATED)
    untruncated = [draw(SIZE, 0.2, key=KEY, step=step) for step in range(STEPS)]
    for one, whole in zip(batches, untruncated, strict=True):
        assert set(one) <= set(whole) and len(one) == min(len(whole), 14)
    cut = [one for one, whole in zip(batches, untruncated, strict=True) if len(whole) > 14]
    assert len(cut) > 300
    assert uniform(cut) > ALPHA and uniform(batches) > ALPHA
    wholes = [whole for whole in untruncated if len(whole) > 14]
    keep = [np.searchsorted(whole, one) / (len(whole) - 1) for one, whole in zip(cut, wholes, strict=True)]
    assert abs(np.concatenate(keep).mean() - 0.5) < 5 / np.sqrt(12 * 14 * len(cut))


@pytest.mark.parametrize("how", ["first", "last"])
def test_truncating_at_an_end_is_rejected(how):
    """The twin: a batch cut in the order of the data set favours one end of it."""
    untruncated = [draw(SIZE, 0.2, key=KEY, step=step) for step in range(STEPS)]
    batches = [batch[:14] if how == "first" else batch[-14:] for batch in untruncated if len(batch) > 14]
    assert uniform(batches) < ALPHA


def test_subsets_without_replacement_are_uniform():
    batches = batches_of(FIXED)
    assert {len(batch) for batch in batches} == {12}
    assert all((np.diff(batch) > 0).all() for batch in batches)
    assert uniform(batches) > ALPHA and pairs(batches) > ALPHA
    again = sum(len(np.intersect1d(one, other)) for one, other in itertools.pairwise(batches))
    law = stats.hypergeom(SIZE, 12, 12)
    assert abs(again - (STEPS - 1) * law.mean()) < 4.9 * np.sqrt((STEPS - 1) * law.var())  # two-sided 1e-6


def test_dealt_out_and_paired_batches_are_rejected():
    """The twins: an epoch that is dealt out, and samples that come two by two."""
    rng = np.random.default_rng(0)
    dealt = [np.sort(part) for _ in range(STEPS // 5) for part in np.split(rng.permutation(SIZE), 5)]
    again = sum(len(np.intersect1d(one, other)) for one, other in itertools.pairwise(dealt))
    law = stats.hypergeom(SIZE, 12, 12)
    assert abs(again - (STEPS - 1) * law.mean()) > 4.9 * np.sqrt((STEPS - 1) * law.var())
    double = [
        np.sort(np.concatenate([2 * p, 2 * p + 1])) for p in (rng.choice(SIZE // 2, 6, False) for _ in range(STEPS))
    ]
    assert pairs(double) < ALPHA


def test_a_tie_at_the_border_is_drawn_again(monkeypatch):
    words = iter([np.array([5, 5, 9], dtype=np.uint64), np.array([7, 2, 3], dtype=np.uint64)])

    class Fixed:
        def __init__(self, key: bytes, label: str) -> None: ...

        def words(self, count: int) -> np.ndarray:
            return next(words)

    monkeypatch.setattr(draws, "Keystream", Fixed)
    assert subset(np.array([10, 11, 12]), 1, key=KEY, label="").tolist() == [11]


def test_full_batches():
    plan = Mechanism(dataset_size=5, expected_batch_size=5, steps=2, sampling="full-batch")
    assert [[part.tolist() for part in batch] for batch in logical_batches(list(range(5)), plan, 3)] == [
        [[0, 1, 2], [3, 4]]
    ] * 2


def test_padded_batches_have_one_shape():
    data = TensorDataset(torch.arange(SIZE))
    plain = [torch.cat([part for (part,) in batch]).tolist() for batch in logical_batches(data, TRUNCATED, 4, key=KEY)]
    for real, batch in zip(plain, logical_batches(data, TRUNCATED, 4, key=KEY, padded=True), strict=True):
        parts = list(batch)
        assert [type(part) for part in parts] == [Padded] * 4  # 14 rows in fours
        rows, weights = torch.cat([part.samples[0] for part in parts]), torch.cat([part.weights for part in parts])
        assert rows.shape == weights.shape == (16,)
        assert rows[weights == 1].tolist() == real and weights.sum() == len(real)


def test_filling_adds_nothing_and_the_step_is_counted(monkeypatch):
    monkeypatch.setattr(sampling, "new_key", lambda: KEY)
    plan = Mechanism(
        dataset_size=SIZE, expected_batch_size=6, steps=2, sampling="truncated-poisson", adjacency="zero-out", noise_multiplier=1.0
    )  # fmt: skip
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).double()
    data = TensorDataset(torch.randn(SIZE, 3).double(), torch.randint(2, (SIZE,)))
    sums = []
    for padded in (False, True):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        engine = gc.attach(model, optimizer, "all-layer", plan)
        batch = next(iter(logical_batches(data, plan, 5, padded=padded)))
        for part in batch:
            (x, y), weights = part if padded else (part, 1.0)
            engine.backward(torch.nn.functional.cross_entropy(model(x), y, reduction="none") * weights)
        sums.append(model.weight.grad.clone())
        optimizer.step()
        assert engine.ledger.steps_by_sampler == {"groupclip": 1, "user": 0}
        engine.detach()
    assert torch.allclose(*sums, rtol=0, atol=1e-12)


@pytest.mark.parametrize("style", ["all-layer", "layer-wise"])
def test_filling_with_a_weight_is_refused_before_anything_is_released(style):
    """It repeats row 0, which would count as often as there is room: far beyond what the noise covers."""
    plan = Mechanism(
        dataset_size=SIZE, expected_batch_size=6, steps=2, sampling="truncated-poisson", adjacency="zero-out", noise_multiplier=1.0
    )  # fmt: skip
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = gc.attach(model, optimizer, style, plan)
    data = TensorDataset(torch.randn(SIZE, 3), torch.randint(2, (SIZE,)))
    before = [p.detach().clone() for p in model.parameters()]
    first, second = logical_batches(data, plan, 5, padded=True)
    for (x, y), _ in first:
        engine.backward(torch.nn.functional.cross_entropy(model(x), y, reduction="none"))
    with pytest.raises(
        PrivacyViolation, match=r"only fill a padded batch up have a gradient.*Multiply the losses by the weights"
    ):
        optimizer.step()
    assert engine.ledger.steps == 0
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    engine.discard()
    for (x, y), weights in second:  # as it should be
        engine.backward(torch.nn.functional.cross_entropy(model(x), y, reduction="none") * weights)
    optimizer.step()
    assert engine.ledger.steps_by_sampler == {"groupclip": 0, "user": 1}  # the first one had no step
    engine.detach()


def test_padding_needs_a_largest_batch():
    plan = Mechanism(dataset_size=5, expected_batch_size=2, steps=2)
    with pytest.raises(ValueError, match=r"padded=True with sampling='poisson': .* sampling='truncated-poisson'"):
        logical_batches(list(range(5)), plan, padded=True)


def test_poisson_batches_are_of_poisson_plans():
    with pytest.raises(ValueError, match=r"planned for sampling='without-replacement': use groupclip\.logical_batches"):
        poisson_batches(list(range(SIZE)), FIXED)
