"""Theorem 1 against the engine, on a problem where its assumptions hold.

Chance enters through batches and noise, all seeded; the false-alarm rate is that of fresh seeds.
"""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats

from groupclip.theory import distance, dp_sgd, theorem_as_printed
from groupclip.theory.convex import Quadratic, _Model, gradient_norms, least_quantile

PROBLEM = Quadratic()
STEPS, RUNS = 80, 8


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.slow), 4])
def measured(request):
    setting = PROBLEM.setting(steps=STEPS)
    return setting, request.param, [gradient_norms(PROBLEM, setting, request.param, seed) for seed in range(RUNS)]


def test_the_assumptions_hold():
    x, h, setting = PROBLEM.data(), PROBLEM.curvature, PROBLEM.setting(steps=1)
    noise = h * x
    assert torch.equal(noise[:128], -noise[128:])  # symmetric, mean zero
    for groups in (1, 2, 4):
        squares = noise.reshape(256, groups, -1).square().sum(2)
        assert torch.allclose(squares, torch.full_like(squares, PROBLEM.xi**2 / groups))  # of every sample
    model = _Model(PROBLEM).double()
    losses = model(x)
    gradient = torch.autograd.grad(losses.mean(), list(model.parameters()))
    assert torch.allclose(torch.stack(gradient), h * PROBLEM.start)  # what gradient_norms measures
    assert model.gradient_norms(4) == pytest.approx((h * PROBLEM.start).norm(dim=1).numpy())
    least = (h * x.square()).sum((1, 2)).mean() / 2  # at w = 0
    assert setting.gap == pytest.approx((losses.mean() - least).item())


def holds(runs, bound, rho):
    """False if at EVERY step so many runs lie above the bound that a true theorem allows it with probability 1e-4 at most."""
    too_many = int(stats.binom.isf(1e-4, len(runs), rho)) + 1
    norms = np.stack([np.sqrt((run**2).sum(1)) for run in runs])
    return (norms >= bound).sum(0).min() < too_many


def test_the_bound_holds(measured):
    setting, groups, runs = measured
    assert holds(runs, dp_sgd(setting, groups).norm, setting.rho)


def test_twin_a_bound_too_small_is_rejected(measured):
    setting, _, runs = measured
    assert not holds(runs, least_quantile(runs, 0.999) / 10, setting.rho)


def expected_sum(setting, groups, runs):
    """Mean and standard error over runs of ``1/T sum_t sum_m max(M, 0)`` at r = 1.5, and what eq. "ready concave" bounds it by."""
    z_r = setting.xi / math.sqrt(groups) / 1.5
    sums = [
        np.maximum(distance(run - z_r, r=1.5, xi=setting.xi, gamma=setting.gamma, groups=groups), 0).sum(1).mean()
        for run in runs
    ]
    return np.mean(sums), np.std(sums, ddof=1) / math.sqrt(len(sums)), dp_sgd(setting, groups).level * setting.rho


def test_the_inequality_before_markov(measured):
    """Within 5 standard errors (8 runs, t with 7 degrees of freedom: 8e-4 at most, and the slack makes it far less)."""
    mean, error, limit = expected_sum(*measured)
    assert mean <= limit + 5 * error


def test_twin_a_learning_rate_that_is_too_small_breaks_it():
    """The bound is of ITS learning rate: with a fiftieth, the gradient stays, and the inequality fails."""
    setting = PROBLEM.setting(steps=STEPS)
    slow = dataclasses.replace(setting, gap=setting.gap / 2500)  # as if the start were 50 times as near
    runs = [gradient_norms(PROBLEM, slow, 1, seed) for seed in range(3)]
    mean, error, limit = expected_sum(slow, 1, runs)
    assert mean > limit + 5 * error


def test_one_step_goes_down_as_the_proof_says():
    """``E[L_1 - L_0] <= -eta B / sqrt(M) sum_m <g, E clipped> + L eta^2 / 2 (B^2 + Var + sigma^2 d)``, at a large gradient; and
    the engine's mean step is the proof's: 150 runs of one step, 5 standard errors (6e-7)."""
    setting = PROBLEM.setting(steps=1)
    rate, g = setting.learning_rate, PROBLEM.curvature * PROBLEM.start
    each = g - PROBLEM.curvature * PROBLEM.data()
    clipped = each / (each.norm(dim=2, keepdim=True) + setting.gamma)  # M = 4: a block a group
    two = dataclasses.replace(setting, steps=2, gap=2 * setting.gap)  # the same rate, and norms after one step
    assert two.learning_rate == pytest.approx(rate)
    squares = np.array([(gradient_norms(PROBLEM, two, 4, seed)[1] ** 2).sum() for seed in range(150)])
    mean = clipped.mean(0) / 2
    h = PROBLEM.curvature
    second = (
        clipped.square().sum(0) / 4 * (0.25 * 0.75) + (64 * mean) ** 2 + 1.0
    ) / 64**2  # Poisson's variance, mean^2, noise
    truth = (h**2 * (PROBLEM.start**2 - 2 * rate * PROBLEM.start * mean + rate**2 * second)).sum().item()
    assert abs(squares.mean() - truth) < 5 * squares.std(ddof=1) / math.sqrt(150)
    assert abs(squares.mean() - truth) < 0.2 * truth  # twin: the error is small enough to see a factor 2 in the step
    fall = -rate / 2 * (g * clipped.mean(0)).sum() + rate**2 / 2 * setting.noise_factor
    exact = (h * (-2 * rate * PROBLEM.start * mean + rate**2 * second)).sum() / 2
    assert exact <= fall


def test_the_printed_theorem_is_smaller_than_what_is_proved(measured):
    setting, groups, _ = measured
    assert theorem_as_printed(setting, groups) < dp_sgd(setting, groups).norm


def test_refusals():
    with pytest.raises(ValueError, match="groups=3 must divide blocks=4"):
        gradient_norms(PROBLEM, PROBLEM.setting(steps=1), 3, 0)


def test_least_quantile():
    runs = [np.array([[3.0, 4.0], [1.0, 0.0]]), np.array([[0.0, 2.0], [9.0, 0.0]])]
    assert least_quantile(runs, 0.5) == 1.0  # one of two at the second step
    assert least_quantile(runs, 0.1) == 5.0  # both at the first
