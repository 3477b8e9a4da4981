"""Thresholds that follow a quantile: what they cost, what one sample can move, and that they arrive.

Statistical tests: 6 standard errors, so a false-alarm rate of 2e-9 each; keys are fixed.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import groupclip as gc
from groupclip.clipping.adaptive import Adaptive, Counts, centred, updated
from groupclip.engine.public_thresholds import public_thresholds
from groupclip.noise.grid import HardenedNoise
from groupclip.noise.sources import InsecureNoise
from groupclip.privacy.allocation import noise_multiplier_of, noise_stds

NORM = st.one_of(st.floats(0, 1e30), st.sampled_from([math.nan, math.inf, 0.0]))


@settings(max_examples=100, deadline=None)
@given(sigma=st.floats(0.1, 50), groups=st.integers(1, 60), share=st.floats(1e-4, 0.9))
def test_the_shares_add_up_to_the_plan(sigma, groups, share):
    facts = Adaptive(share=share)
    bounds, sizes = {str(g): 0.3 + g for g in range(groups)}, {str(g): 5 for g in range(groups)}
    stds = noise_stds("threshold", bounds, sizes, facts.gradient_multiplier(sigma))
    assert noise_multiplier_of(stds, bounds, facts.release(sigma).values()) == pytest.approx(sigma, rel=1e-9)
    # the release is the counts' noise over how far one sample moves them, 1/2 in each group
    assert facts.count_std(sigma, groups) / (math.sqrt(groups) / 2) == pytest.approx(*facts.release(sigma).values())
    # the twin: gradients at the plan's own noise beside the counts would amount to less than the plan
    assert noise_multiplier_of(noise_stds("equal", bounds, sizes, sigma), bounds, facts.release(sigma).values()) < sigma


@settings(max_examples=200, deadline=None)
@given(norms=st.lists(NORM, max_size=8), extra=NORM, threshold=st.floats(1e-6, 1e6))
def test_one_sample_moves_a_count_by_a_half_at_most(norms, extra, threshold):
    def count(of: list[float]) -> float:
        return float(centred(torch.tensor(of, dtype=torch.float64), threshold).sum())

    assert abs(count([*norms, extra]) - count(norms)) <= 0.5
    for i in range(len(norms)):
        assert abs(count([*norms[:i], extra, *norms[i + 1 :]]) - count(norms)) <= 1.0


def test_plain_indicators_move_by_one():
    """The twin: counting 1 for "within" instead of centring moves a count twice as far as the noise is made for."""
    within = [(torch.tensor(norms) <= 1.0).sum() for norms in ([0.5], [0.5, 0.5])]
    assert within[1] - within[0] == 1 > 0.5


def test_the_noise_of_the_counts():
    facts, sigma, bounds = Adaptive(rate=1e-3), 2.0, {"a": 1.0, "b": 4.0, "c": 9.0}
    seen = []
    noise = InsecureNoise(3)
    for _ in range(3_000):
        counts = Counts(facts, bounds)
        counts.saw("a", torch.tensor([0.5, 0.5]))
        moved = counts.release(noise, sigma, 10.0)
        seen.append([(-math.log(moved[g] / bounds[g]) / facts.rate + facts.quantile - 0.5) * 10.0 for g in bounds])
    found, std = torch.tensor(seen), facts.count_std(sigma, 3)
    assert std == pytest.approx(2 * math.sqrt(3) / (2 * math.sqrt(0.01)))
    assert (abs(found.std(0) / std - 1) < 6 / math.sqrt(2 * 3_000)).all()
    assert (abs(found.mean(0) - torch.tensor([1.0, 0.0, 0.0])) < 6 * std / math.sqrt(3_000)).all()
    # the twin: 20 % less noise is told apart
    assert (abs(0.8 * found.std(0) / std - 1) > 6 / math.sqrt(2 * 3_000)).all()


@pytest.mark.parametrize("quantile", [0.3, 0.5, 0.8])
def test_they_arrive_at_the_quantile(quantile):
    generator = torch.Generator().manual_seed(0)
    counts, noise = Counts(Adaptive(quantile=quantile), {"small": 1.0, "large": 1.0}), InsecureNoise(0)
    for _ in range(300):
        counts.saw("small", 0.01 * torch.randn(500, generator=generator).exp())
        for _ in range(2):  # micro-batches
            counts.saw("large", 100 * torch.randn(250, generator=generator).exp())
        bounds = counts.release(noise, 1.0, 500.0)
    z = math.sqrt(2) * torch.erfinv(torch.tensor(2 * quantile - 1)).item()
    assert bounds["small"] == pytest.approx(0.01 * math.exp(z), rel=0.15)
    assert bounds["large"] == pytest.approx(100 * math.exp(z), rel=0.15)


def test_noise_alone_keeps_them_in_range():
    counts, noise = Counts(Adaptive(rate=10.0), {"a": 2.0}), InsecureNoise(0)
    for _ in range(200):
        bound = counts.release(noise, 1e6, 1.0)["a"]
        assert 2e-6 <= bound <= 2e6
    assert updated(1.0, 1e300, Adaptive()) > 0 and updated(1.0, -1e300, Adaptive()) < math.inf


def test_a_discarded_batch_leaves_nothing():
    counts = Counts(Adaptive(), {"a": 1.0})
    counts.saw("a", torch.ones(1_000))
    counts.discard()
    other = Counts(Adaptive(), {"a": 1.0})
    assert counts.release(InsecureNoise(5), 1.0, 10.0) == other.release(InsecureNoise(5), 1.0, 10.0)


def test_saved_thresholds():
    counts = Counts(Adaptive(), {"a": 1.0})
    counts.load({"a": 3.0})
    assert counts.thresholds == {"a": 3.0}
    for wrong in ({"b": 1.0}, {"a": 0.0}, {"a": math.nan}):
        with pytest.raises(ValueError, match="must be positive, of the groups"):
            counts.load(wrong)


@pytest.mark.parametrize(
    "wrong", [{"quantile": 0}, {"quantile": 1.0}, {"share": 0.0}, {"share": 1}, {"rate": 0}, {"rate": 11}]
)
def test_wrong_facts(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"{name}=.* must be in"):
        Adaptive(**wrong)


def test_thresholds_of_public_data():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    batches = [(torch.randn(7, 4).double(), torch.randint(3, (7,))) for _ in range(3)]

    def losses(net: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(net(batch[0]), batch[1], reduction="none")

    groups = gc.partition(model, "layer-wise")
    found = public_thresholds(model, groups, batches, losses, quantile=0.75)
    for group in groups.names:
        norms = []
        for x, y in batches:
            for i in range(7):
                loss = losses(model, (x[i : i + 1], y[i : i + 1])).sum()
                grads = torch.autograd.grad(loss, [dict(model.named_parameters())[n] for n in groups[group]])
                norms.append(torch.sqrt(sum(g.square().sum() for g in grads)))
        assert found[group] == pytest.approx(float(torch.quantile(torch.stack(norms), 0.75)), rel=1e-10)
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in model.named_parameters())
    assert type(model[0].weight) is nn.Parameter


def test_thresholds_of_no_data():
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="batches is empty"):
        public_thresholds(model, "all-layer", [], lambda net, x: net(x).sum(1))
    with pytest.raises(ValueError, match=r"quantile of the norms of group .* is 0\.0"):
        public_thresholds(model, "all-layer", [torch.zeros(3, 2)], lambda net, x: (net(x) * 0).sum(1))
    with pytest.raises(ValueError, match=r"quantile=0 must be in \(0, 1\]"):
        public_thresholds(model, "all-layer", [], lambda net, x: net(x).sum(1), quantile=0)


def test_counts_can_have_hardened_noise():
    counts = Counts(Adaptive(), {"a": 1.0})
    assert counts.release(HardenedNoise(bytes(32)), 1.0, 10.0)["a"] != 1.0
