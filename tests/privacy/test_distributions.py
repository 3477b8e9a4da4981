"""Figures for a person with several samples, against a convolution and batches that are written out here.

Each check has a twin: the figure of one sample, or another plausible mistake, that the check must reject.
"""

import functools
import itertools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import stats
from scipy.signal import fftconvolve

from groupclip.privacy import accounting, distributions
from groupclip.privacy.mechanism import Mechanism
from groupclip.privacy.sampled_step import Step

ISSUE = Mechanism(dataset_size=50_000, expected_batch_size=1_024, steps=980, noise_multiplier=1.0)


def step(q: float, sigma: float, samples: int, adjacency: str = "add-or-remove-one") -> Step:
    return Step(sampling="poisson", adjacency=adjacency, rate=q, sigma=sigma, samples=samples)


def claimed(asked: Step, steps: int, epsilon: float) -> float:
    found = accounting.delta_bounds(asked, steps, epsilon, steps).value
    assert found is not None
    return found


def masses(shares: list[float], sigma: float, sign: int, xs: np.ndarray) -> np.ndarray:
    """Masses, on the cells between ``xs``, of Gaussians at 0, 1, 2, .. times ``sign``."""
    total = np.zeros(len(xs) - 1)
    for j, share in enumerate(shares):
        law = stats.norm(sign * j, sigma)
        total += share * np.where(xs[1:] < sign * j, np.diff(law.cdf(xs)), -np.diff(law.sf(xs)))
    return total


@functools.lru_cache(maxsize=1)  # for several epsilons in turn
def convolved_losses(q: float, sigma: float, samples: int, steps: int, adjacency: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Privacy losses and masses of the pair in which every gradient points the same way: losses rounded down to a grid."""
    shares = [math.comb(samples, j) * q**j * (1 - q) ** (samples - j) for j in range(samples + 1)]
    xs = np.linspace(-12 * sigma - samples, 12 * sigma + samples, 40_001)
    up, down, still = (masses(law, sigma, sign, xs) for law, sign in ((shares, 1), (shares, -1), ([1.0], 1)))
    grid, found = 5e-4, []
    for over, under in [(up, down)] if adjacency == "replace-one" else [(up, still), (still, up)]:
        kept = (over > 1e-300) & (under > 1e-300)
        loss = np.floor(np.log(over[kept] / under[kept]) / grid).astype(int)
        one, many = np.bincount(loss - loss.min(), weights=over[kept]), np.ones(1)
        for _ in range(steps):
            many = np.maximum(fftconvolve(many, one), 0.0)
        found.append(((np.arange(len(many)) + steps * loss.min()) * grid, many))
    return found


def convolved_delta(q: float, sigma: float, samples: int, steps: int, epsilon: float, adjacency: str) -> float:
    """delta(epsilon) from below: in both directions, the larger."""
    laws = convolved_losses(q, sigma, samples, steps, adjacency)
    return max(float((masses * -np.expm1(np.minimum(epsilon - losses, 0.0))).sum()) for losses, masses in laws)


FEW = [(0.1, 1.0, 2, 1), (0.1, 1.0, 4, 3), (0.3, 2.0, 3, 4), (0.01, 0.8, 8, 2), (0.7, 3.0, 2, 5)]


@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "zero-out"])
@pytest.mark.parametrize(("q", "sigma", "samples", "steps"), FEW)
def test_few_steps_of_several_samples_convolved_here(q, sigma, samples, steps, adjacency):
    """Twins: a sample fewer, 5 % more noise and a lower rate lie below the truth."""
    for epsilon in (0.5, 2.0, 5.0):
        truth = convolved_delta(q, sigma, samples, steps, epsilon, adjacency)
        assert truth * (1 - 1e-6) - 1e-13 <= claimed(step(q, sigma, samples, adjacency), steps, epsilon) <= truth * 1.02 + 1e-9
    truth = convolved_delta(q, sigma, samples, steps, 2.0, adjacency)
    assert claimed(step(q, sigma, samples - 1, adjacency), steps, 2.0) < truth
    assert claimed(step(q, 1.05 * sigma, samples, adjacency), steps, 2.0) < truth
    assert claimed(step(0.95 * q, sigma, samples, adjacency), steps, 2.0) < truth


@pytest.mark.parametrize(("q", "sigma", "samples", "steps"), FEW)
def test_replacing_several_samples_is_a_bound(q, sigma, samples, steps):
    """Not a tight one. Twins: removing them, and replacing one, lie below the truth."""
    truth = convolved_delta(q, sigma, samples, steps, 2.0, "replace-one")
    assert truth <= claimed(step(q, sigma, samples, "replace-one"), steps, 2.0)
    assert claimed(step(q, sigma, 1, "replace-one"), steps, 2.0) < truth
    assert claimed(step(q, sigma, samples), steps, 2.0) < truth


def test_gradients_that_point_elsewhere_cost_less():
    """Two samples in two dimensions, at every angle, batch by batch: the same direction is the worst."""
    q, sigma = 0.3, 0.8
    axis = np.linspace(-6, 7, 521)
    x, y = np.meshgrid(axis, axis)
    cell = (axis[1] - axis[0]) ** 2

    def density(a: float, b: float) -> np.ndarray:
        return np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * sigma**2)) / (2 * math.pi * sigma**2)

    def delta(epsilon: float, angle: float) -> float:
        gradients = ((1.0, 0.0), (math.cos(angle), math.sin(angle)))
        with_them = np.zeros_like(x)
        for chosen in itertools.product((0, 1), repeat=2):
            chance = math.prod(q if taken else 1 - q for taken in chosen)
            with_them += chance * density(*(sum(t * g[i] for t, g in zip(chosen, gradients, strict=True)) for i in (0, 1)))
        ways = (with_them - math.exp(epsilon) * density(0, 0), density(0, 0) - math.exp(epsilon) * with_them)
        return max(float(np.maximum(way, 0).sum() * cell) for way in ways)

    for epsilon in (0.0, 0.5, 2.0):
        found = [delta(epsilon, angle) for angle in np.linspace(0, math.pi, 7)]
        assert found[0] == max(found) > 1.001 * found[2] > 0
        assert claimed(step(q, sigma, 2), 1, epsilon) == pytest.approx(found[0], rel=1e-3)


@pytest.mark.parametrize(("q", "sigma", "samples"), [(0.02, 1.0, 4), (0.3, 0.5, 2), (0.001, 2.0, 8)])
def test_the_mixture_is_dp_accountings(q, sigma, samples):
    present = range(samples + 1)
    theirs = pld.from_mixture_gaussian_mechanism(
        sigma, list(present), [float(stats.binom.pmf(j, samples, q)) for j in present], value_discretization_interval=0.01
    )
    ours = distributions.one_step(step(q, sigma, samples), 0.01)
    for epsilon in (0.0, 0.1, 1.0, 4.0):
        expected = theirs.get_delta_for_epsilon(epsilon)
        assert ours.get_delta_for_epsilon(epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "replace-one"])
@pytest.mark.parametrize("samples", [2, 7])
def test_full_batches_of_several_samples_are_the_analytic_gaussian(adjacency, samples):
    plan = Mechanism(
        dataset_size=100, expected_batch_size=100, steps=9, noise_multiplier=8.0, sampling="full-batch", adjacency=adjacency
    )
    found = plan.spent(delta=1e-6, samples_per_user=samples)
    with mpmath.workdps(50):
        mu = mpmath.mpf(3 * samples * (2 if adjacency == "replace-one" else 1)) / 8
        eps = mpmath.mpf(found.epsilon)
        delta = mpmath.ncdf(mu / 2 - eps / mu) - mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu)
    assert found.accountant == "exact" and float(delta) == pytest.approx(1e-6, rel=1e-6)


def test_the_figures_of_a_plan_of_thousand_steps():
    """980 steps are convolved by their powers here; k times the figure of one sample would say too little."""
    found = {k: ISSUE.spent(delta=1e-5, samples_per_user=k).epsilon for k in (1, 2, 4, 8)}
    assert found[1] == ISSUE.epsilon(delta=1e-5) == pytest.approx(3.96, abs=0.01)
    assert found[2] == pytest.approx(8.89, abs=0.01) and found[4] == pytest.approx(20.96, abs=0.02)
    for k, epsilon in found.items():
        assert epsilon == pytest.approx(power_epsilon(k), rel=4e-3)
        assert k == 1 or epsilon > 1.1 * k * found[1]


def power_epsilon(samples: int) -> float:
    """epsilon at 1e-5 of the plan of the issue: powers of a Fourier transform, losses rounded to the nearest."""
    q, grid, size = ISSUE.sample_rate, 1e-3, 2**19
    shares = [math.comb(samples, j) * q**j * (1 - q) ** (samples - j) for j in range(samples + 1)]
    xs = np.linspace(-12 - samples, 12 + samples, 400_001)
    over, under = masses(shares, 1.0, 1, xs), masses([1.0], 1.0, 1, xs)
    kept = (over > 1e-300) & (under > 1e-300)
    loss = np.rint(np.log(over[kept] / under[kept]) / grid).astype(int)
    one = np.bincount(loss - loss.min(), weights=over[kept], minlength=size)
    assert len(one) == size
    many = np.fft.irfft(np.fft.rfft(one) ** ISSUE.steps, size)
    mean = round(ISSUE.steps * float((one * (np.arange(size) + loss.min())).sum()))
    places = mean - size // 2 + np.arange(size)
    many, losses = many[(places - ISSUE.steps * loss.min()) % size], places * grid
    low, high = 0.0, 500.0
    for _ in range(50):
        epsilon = (low + high) / 2
        above = losses > epsilon
        found = float((many[above] * -np.expm1(epsilon - losses[above])).sum())
        low, high = (epsilon, high) if found > 1e-5 else (low, epsilon)
    return low


def test_more_samples_cost_more_and_many_are_bounded():
    plan = Mechanism(dataset_size=100_000, expected_batch_size=10, steps=20, noise_multiplier=20.0)
    found = [plan.spent(delta=1e-5, samples_per_user=k) for k in (1, 2, 16, 64, 65, 500)]
    assert sorted(f.epsilon for f in found) == [f.epsilon for f in found]
    assert [("as if all were drawn" in f.note) for f in found] == [False] * 4 + [True] * 2
    assert [f.samples_per_user for f in found] == [1, 2, 16, 64, 65, 500]


@pytest.mark.parametrize(
    ("facts", "samples", "message"),
    [
        ({"sampling": "truncated-poisson", "adjacency": "zero-out"}, 2, "can't be accounted with sampling='truncated-poisson'"),
        ({"sampling": "without-replacement", "adjacency": "replace-one"}, 3, "use sampling='poisson', or plan with unit"),
        ({}, 0, "samples_per_user=0"),
        ({}, 101, "samples_per_user=101 is more than dataset_size=100"),
    ],
)
def test_what_is_not_known_for_several_samples_is_refused(facts, samples, message):
    plan = Mechanism(dataset_size=100, expected_batch_size=10, steps=3, noise_multiplier=2.0, **facts)
    with pytest.raises(ValueError, match=message):
        plan.spent(delta=1e-5, samples_per_user=samples)


def test_no_step_spends_nothing_for_anybody():
    spent = ISSUE.spent(delta=1e-5, steps=0, samples_per_user=4)
    assert (spent.epsilon, spent.samples_per_user) == (0.0, 4)
