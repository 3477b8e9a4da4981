"""The cost of choosing the best run, against dp-accounting's event, against the formulas, and against what can't be less."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp

from groupclip.privacy import selection as search
from groupclip.privacy.mechanism import Mechanism
from groupclip.privacy.selection import _invert, _part, calibrate_search, draw_runs, search_cost
from work import lines_run

PLAN = Mechanism(dataset_size=50_000, expected_batch_size=500, steps=1_000, noise_multiplier=1.0)


def by_the_event(mean: float, shape: float, delta: float = 1e-5) -> float:
    step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
    event = dp_accounting.dp_event.RepeatAndSelectDpEvent(dp_accounting.SelfComposedDpEvent(step, 1_000), mean, shape)
    return rdp.RdpAccountant().compose(event).get_epsilon(delta)


@pytest.mark.parametrize(
    ("law", "shape"), [("logarithmic", 0.0), ("geometric", 1.0), (0.5, 0.5), ("poisson", math.inf)]
)
@pytest.mark.parametrize("mean", [1.0, 3.0, 10.0, 300.0])
def test_the_cost_is_that_of_the_event(law, shape, mean):
    assert search_cost(PLAN, delta=1e-5, mean_runs=mean, law=law).epsilon == pytest.approx(
        by_the_event(mean, shape), rel=1e-6
    )


def test_published_formula_by_hand():
    """Theorem 2 with shape 1 (geometric, gamma = 1 / mean), evaluated here over the orders."""
    accountant = rdp.RdpAccountant().compose(
        dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0)), 1_000
        )
    )
    orders, divergences = accountant.orders, accountant.rdp
    mean = 10.0
    constant = 2 * min((1 - 1 / o) * r + math.log(mean) / o for o, r in zip(orders, divergences, strict=True))
    best = min(
        r + math.log(mean) / (o - 1) + constant + math.log1p(-1 / o) - math.log(1e-5 * o) / (o - 1)
        for o, r in zip(orders, divergences, strict=True)
        if o > 1.01
    )
    assert search_cost(PLAN, delta=1e-5, mean_runs=10).epsilon == pytest.approx(best, rel=1e-6)


def test_more_runs_cost_more_and_the_best_of_some_more_than_one():
    for law in ("logarithmic", "geometric", "poisson"):
        costs = [search_cost(PLAN, delta=1e-5, mean_runs=mean, law=law).epsilon for mean in (1, 2, 5, 20, 100)]
        assert costs == sorted(costs) and costs[0] >= PLAN.spent(delta=1e-5).rdp * (1 - 1e-9)
        # and far less than composing the runs would
        assert costs[-1] < 100 * PLAN.epsilon(delta=1e-5) / 10


def test_what_can_not_be_computed_is_refused():
    replace = Mechanism(
        dataset_size=50_000, expected_batch_size=500, steps=10, noise_multiplier=1.0, adjacency="replace-one"
    )
    with pytest.raises(
        ValueError, match=r"needs the RDP of a run, and sampling='poisson' with adjacency='replace-one' has none"
    ):
        search_cost(replace, delta=1e-5, mean_runs=3)
    for arguments, message in [
        ({"mean_runs": 0.5}, r"mean_runs=0\.5 must be in \[1, 1e6\]"),
        ({"mean_runs": 3, "law": "fixed"}, "law='fixed' is unknown; use one of logarithmic, geometric, poisson"),
        ({"mean_runs": 3, "law": -1}, "law=-1: the shape of a truncated negative binomial must be > 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            search_cost(PLAN, delta=1e-5, **arguments)


@pytest.mark.parametrize(("shape", "mean"), [(0.0, 10.0), (1.0, 10.0), (0.5, 4.0), (math.inf, 6.0), (1.0, 1.0)])
def test_the_number_of_runs_has_the_law(shape, mean):
    """By inversion on an even grid of uniforms: the mean, and for the geometric law every probability."""
    uniforms = (np.arange(40_000) + 0.5) / 40_000
    runs = np.array([_invert(uniform, mean, shape) for uniform in uniforms.tolist()])
    assert runs.mean() == pytest.approx(mean, rel=0.005)
    assert runs.min() == (0 if shape == math.inf else 1)
    if shape == 1.0 and mean > 1:
        for k in range(1, 20):
            assert (runs == k).mean() == pytest.approx(0.1 * 0.9 ** (k - 1), abs=1e-4)
    # the twin: a fixed number of runs with that mean has another law
    assert mean == 1 or runs.std() > 0.5


@pytest.mark.parametrize(
    ("law", "mean", "deviation"),
    [
        ("poisson", 745.0, 27.3),
        ("poisson", 1_000.0, 31.6),
        ("poisson", 1e5, 316.2),
        (1e6, 1e4, 100.5),
        (2e3, 1e4, 245.0),
    ],
)
def test_many_runs_have_the_law_too(law, mean, deviation):
    """Where the probability of none underflows: Poisson has the variance mean, a negative binomial mean + mean^2 / shape."""
    drawn = np.array([draw_runs(mean, law) for _ in range(60)])
    assert abs(drawn.mean() - mean) < 6 * deviation / math.sqrt(60)
    assert 0.5 < drawn.std() / deviation < 1.6


def test_the_most_runs_are_drawn_in_time():
    """A walk of three lines a run, and nothing that grows faster."""
    with lines_run(search, most=4 * 1_006_500):
        assert abs(draw_runs(1e6, "poisson") - 1e6) < 6_500


def test_twin_a_walk_that_does_not_end_is_stopped():
    """Past the last mass that a double can hold, nothing is left of the uniform's rest either."""
    with pytest.raises(AssertionError, match=r"more than 10,000 lines of groupclip\.privacy\.selection"), lines_run(search, 10_000):
        search._walk(math.inf, 0, 1.0, math.inf, 0.5, 1.0)


def test_a_split_number_is_that_of_one_inversion():
    """The sum of two halves, over an even grid of pairs of uniforms, has the probabilities of the whole."""
    uniforms = ((np.arange(300) + 0.5) / 300).tolist()
    for mean, shape in ((6.0, math.inf), (6.0, 50.0)):
        half = np.bincount([_part(u, mean, shape, 2) for u in uniforms], minlength=60) / 300
        whole = np.bincount([_invert(u, mean, shape) for u in uniforms], minlength=60) / 300
        assert np.abs(np.convolve(half, half)[:60] - whole).max() < 0.01


def test_a_large_shape_is_nearly_poisson():
    """1 - gamma is tiny there and mustn't be lost to rounding."""
    uniforms = ((np.arange(20_000) + 0.5) / 20_000).tolist()
    for shape in (1e9, 1e15, 1e200):
        runs = np.array([_invert(u, 2.0, shape) for u in uniforms])
        # Poisson without 0, of mean 2: rate / (1 - exp(-rate)) = 2
        assert runs.mean() == pytest.approx(2.0, rel=0.001) and (runs == 1).mean() == pytest.approx(0.4064, abs=3e-4)


def test_runs_are_drawn_afresh():
    assert len({draw_runs(1_000.0) for _ in range(20)}) > 1  # all equal: below 1e-50


@pytest.mark.parametrize("law", ["geometric", "poisson"])
def test_a_search_is_calibrated_as_a_whole(law):
    found = calibrate_search(PLAN, epsilon=3.0, delta=1e-5, mean_runs=10, law=law)
    assert 2.97 <= search_cost(found, delta=1e-5, mean_runs=10, law=law).epsilon <= 3.0
    # a single run of it spends much less; and one run calibrated to 3 would be searched for more
    assert found.epsilon(delta=1e-5) < 2.0
    alone = PLAN.calibrate(epsilon=3.0, delta=1e-5)
    assert search_cost(alone, delta=1e-5, mean_runs=10, law=law).epsilon > 4.0


def test_no_search_is_calibrated_without_a_bound():
    wrong = Mechanism(dataset_size=100, expected_batch_size=10, steps=10, adjacency="replace-one")
    with pytest.raises(ValueError, match="needs the RDP of a run"):
        calibrate_search(wrong, epsilon=3.0, delta=1e-5, mean_runs=10)
