"""Extreme plans are answered with a finite figure or refused by name, at a bounded cost: never NaN, inf, a warning or a hang."""

import math

import dp_accounting
import pytest

from groupclip.privacy import accounting, distributions
from groupclip.privacy.mechanism import Mechanism
from groupclip.privacy.sampled_step import ACCOUNTANTS, Step
from work import points_computed

EXTREMES = [  # n, B, T, sigma, delta
    (10**9, 1, 10**8, 1.0, 1e-9),  # tiny q, many steps
    (10**5, 1_000, 10**8, 50.0, 1e-6),
    (1_000, 500, 10**4, 0.05, 1e-5),  # little noise
    (1_000, 10, 1_000, 0.02, 1e-12),  # and a tiny delta
    (1_000, 999, 10**6, 1e3, 1e-12),
    (2, 1, 1, 0.5, 1e-5),
    (10**6, 1_000, 1, 1e-3, 1e-5),
]
# 3.7 million are needed at most for an answer and 75 million for a calibration; ten million take a second or two
_ANSWER, _CALIBRATION = 5_000_000, 100_000_000


@pytest.mark.parametrize("facts", EXTREMES, ids=str)
@pytest.mark.parametrize(("sampling", "adjacency"), list(ACCOUNTANTS))
def test_an_answer_or_a_refusal(sampling, adjacency, facts):
    size, batch, steps, sigma, delta = facts
    mechanism = Mechanism(
        dataset_size=size,
        expected_batch_size=size if sampling == "full-batch" else batch,
        steps=steps,
        noise_multiplier=sigma,
        sampling=sampling,
        adjacency=adjacency,
    )
    try:
        with points_computed(_ANSWER):
            spent = mechanism.spent(delta=delta)
            assert 0 <= spent.epsilon < math.inf
            assert spent.accountant in ACCOUNTANTS[sampling, adjacency]
            assert 0 < mechanism.delta(epsilon=1.0) <= 1
    except ValueError as error:
        assert "RDP" not in ACCOUNTANTS[sampling, adjacency]  # where RDP can answer it does
        assert f"no accountant gives a figure for sampling='{sampling}' with adjacency='{adjacency}' here: " in str(
            error
        )


def test_more_steps_than_are_shown_right_are_refused():
    for steps in (10**10 + 1, 10**14, 2**53):
        with pytest.raises(
            ValueError, match=r"steps=\d+ is more than 10,000,000,000: .*epsilon could come out too small"
        ):
            Mechanism(dataset_size=10_000, expected_batch_size=1, steps=steps)


@pytest.mark.parametrize(("rate", "mu"), [(0.5, 0.1), (0.01, 0.5), (0.1, 2.0)])
@pytest.mark.parametrize("delta", [1e-5, 1e-10])
def test_the_most_steps_are_not_below_the_truth(rate, mu, delta):
    """So many steps of so little loss are one Gaussian mechanism, all but exactly."""
    plan = Mechanism(
        dataset_size=10_000, expected_batch_size=rate * 10_000, steps=10**10, noise_multiplier=rate * 1e5 / mu
    )
    assert plan.epsilon(delta=delta) >= 0.999 * dp_accounting.get_epsilon_gaussian(1 / mu, delta)


@pytest.mark.parametrize("delta", [0.9, 1e-5])
def test_the_most_steps_calibrate(delta):
    with points_computed(_CALIBRATION):
        made = Mechanism(dataset_size=10_000, expected_batch_size=1, steps=10**10).calibrate(epsilon=1.0, delta=delta)
        assert 0.99 <= made.epsilon(delta=delta) <= 1.0


@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "replace-one"])
def test_delta_is_told_whatever_the_number_of_steps(adjacency):
    """Nobody gave a delta: that 1e-5 is below what PLD resolves is no reason to refuse."""
    plan = Mechanism(
        dataset_size=10_000, expected_batch_size=1, steps=10**10, noise_multiplier=40.0, adjacency=adjacency
    )
    mu = 0.25 if adjacency == "add-or-remove-one" else 0.5  # q sqrt(T) / sigma, as good as exact at so many steps
    exact = accounting.delta_bounds(
        Step(sampling="full-batch", adjacency="zero-out", rate=1.0, sigma=1 / mu), 1, 1.0, 1
    )
    assert exact.value is not None and exact.value <= plan.delta(epsilon=1.0) < 0.5


def test_a_refusal_is_worded_for_what_was_asked():
    plan = Mechanism(
        dataset_size=1_000, expected_batch_size=500, steps=10**4, noise_multiplier=0.002, adjacency="replace-one"
    )
    with pytest.raises(ValueError, match="use a larger delta, fewer steps or another pair"):
        plan.epsilon(delta=1e-5)
    with pytest.raises(ValueError, match="use a larger epsilon, fewer steps or another pair"):
        plan.delta(epsilon=1.0)


@pytest.mark.parametrize("steps", [100, 100_000])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_replacements_through_the_fft_are_not_below_the_truth(steps, delta):
    """At q = 1 and sigma = sqrt(T) they are one Gaussian with sigma = 1/2."""
    step = Step(sampling="poisson", adjacency="replace-one", rate=1.0, sigma=math.sqrt(steps))
    exact = dp_accounting.get_epsilon_gaussian(0.5, delta)
    found = accounting.epsilon_bounds(step, steps, delta, steps).pld
    assert found is not None and exact <= found <= exact * 1.02


@pytest.mark.parametrize(
    "facts",
    [
        (1_000, 10, 10**6, 50.0, 1e-6),
        (100, 1, 1_000, 500.0, 1e-5),
        (10**6, 1, 10**7, 0.1, 1e-9),
        (10**9, 10**4, 10**8, 8.0, 1e-10),
        pytest.param((10**7, 10, 10**8, 1.0, 1e-6), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_extreme_plans_calibrate(facts):
    size, batch, steps, epsilon, delta = facts
    with points_computed(_CALIBRATION):
        made = Mechanism(dataset_size=size, expected_batch_size=batch, steps=steps).calibrate(epsilon=epsilon, delta=delta)
        assert 0.99 * epsilon <= made.epsilon(delta=delta) <= epsilon


@pytest.mark.parametrize(
    ("module", "name", "value", "facts"),
    [
        (accounting, "_MOST_BINS", 10**8, (10**5, 1_000, 10**8, 50.0, 1e-6)),  # a grid as fine as it likes
        (distributions, "_BLOCK", 10**12, (1_000, 999, 10**9, 1e9, 1e-3)),  # an integer to the power of all steps
    ],
)
def test_twin_a_plan_that_would_take_for_ever_is_stopped(monkeypatch, module, name, value, facts):
    monkeypatch.setattr(module, name, value)
    with pytest.raises(AssertionError, match="more than 5,000,000 points were computed"):
        test_an_answer_or_a_refusal("poisson", "add-or-remove-one", facts)
