"""Every figure against dp-accounting called directly, a closed form, or a bound from the other side."""

import itertools
import logging
import math

import dp_accounting
import pytest
from dp_accounting import pld, rdp
from hypothesis import example, given, settings
from hypothesis import strategies as st

from groupclip.privacy import accounting, distributions
from groupclip.privacy.sampled_step import Bounds, Step

RELATION = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
GRID = [  # q, sigma, steps, delta: small and large noise, one step to 100,000, full batches
    (0.01, 1.0, 1_000, 1e-5),
    (0.02, 1.0, 250, 1e-5),
    (0.02, 0.6, 250, 1e-5),
    (0.001, 0.7, 10_000, 1e-6),
    (0.001, 1.0, 100_000, 1e-6),
    (0.1, 2.0, 100, 1e-5),
    (0.5, 5.0, 50, 1e-6),
    (1.0, 10.0, 20, 1e-5),
    (0.01, 20.0, 20_000, 1e-5),
    (0.004, 0.8, 1, 1e-5),
]
EACH = [pytest.param(*row, marks=pytest.mark.slow if row[2] > 10_000 and row[1] < 2 else ()) for row in GRID]  # seconds each


def poisson(q: float, sigma: float) -> Step:
    return Step(sampling="poisson", adjacency="add-or-remove-one", rate=q, sigma=sigma)


def bounds(q: float, sigma: float, steps: int, delta: float) -> Bounds:
    return accounting.epsilon_bounds(poisson(q, sigma), steps, delta, steps)


def deltas(q: float, sigma: float, steps: int, epsilon: float) -> Bounds:
    return accounting.delta_bounds(poisson(q, sigma), steps, epsilon, steps)


def event(q: float, sigma: float, steps: int) -> dp_accounting.DpEvent:
    step = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
    return dp_accounting.SelfComposedDpEvent(step, steps)


def optimistic(q: float, sigma: float, steps: int, delta: float, grid: float) -> float:
    """A lower bound on the true epsilon: the PLD rounded down."""
    one = pld.privacy_loss_distribution.from_gaussian_mechanism(
        sigma,
        pessimistic_estimate=False,
        value_discretization_interval=grid,
        sampling_prob=q,
        use_connect_dots=False,
        neighboring_relation=RELATION,
    )
    return one.self_compose(steps).get_epsilon_for_delta(delta)


@pytest.mark.one_in(2, first=1)
@pytest.mark.parametrize(("q", "sigma", "steps", "delta"), EACH)
def test_reported_lies_between_the_optimistic_pld_and_rdp(q, sigma, steps, delta):
    reported = bounds(q, sigma, steps, delta)
    direct = rdp.RdpAccountant(neighboring_relation=RELATION).compose(event(q, sigma, steps)).get_epsilon(delta)
    assert reported.rdp == pytest.approx(direct, rel=1e-6)
    assert reported.value is not None
    assert optimistic(q, sigma, steps, delta, 1e-4 if steps < 50_000 else 2e-5) <= reported.value <= reported.rdp


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("q", "sigma", "steps", "delta"), EACH)
def test_pld_agrees_with_dp_accounting_called_directly(q, sigma, steps, delta):
    grid = 1e-4 if steps <= 1_000 else 2e-5
    direct = pld.PLDAccountant(RELATION, value_discretization_interval=grid).compose(event(q, sigma, steps))
    assert bounds(q, sigma, steps, delta).pld == pytest.approx(direct.get_epsilon(delta), rel=4e-3)
    epsilon = direct.get_epsilon(1e-5)
    ours = deltas(q, sigma, steps, epsilon).value
    assert ours == pytest.approx(direct.get_delta(epsilon), rel=2e-2)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_one_full_batch_step_is_the_gaussian_mechanism(sigma, delta):
    exact = dp_accounting.get_epsilon_gaussian(sigma, delta)
    assert exact <= bounds(1.0, sigma, 1, delta).value <= exact * 1.001 + 1e-6


@pytest.mark.parametrize("steps", [100, 10_000, 1_000_000])
@pytest.mark.parametrize("delta", [1e-5, 1e-8, 1e-11, 1e-12])
def test_never_below_the_truth_where_the_fft_rounds(steps, delta):
    """Full batches with sigma = sqrt(T) are one Gaussian mechanism with sigma = 1, whatever T is."""
    exact = dp_accounting.get_epsilon_gaussian(1.0, delta)
    value = bounds(1.0, math.sqrt(steps), steps, delta).value
    assert value is not None
    assert exact <= value <= exact * 1.12


# Which way the FFT's rounding goes hangs on the plan, and on the processor's instructions too.
ROUNDED = [(steps, grid) for steps in (5_000, 7_000, 9_000) for grid in (2.5e-4, 1e-4, 5e-5)]


@pytest.mark.parametrize(("steps", "grid"), ROUNDED)
def test_the_allowance_is_enough_on_a_given_grid(steps, grid):
    """On the grid that is chosen for such a plan, coarseness may hide the rounding; here it can't."""
    step, exact = poisson(1.0, math.sqrt(steps)), dp_accounting.get_epsilon_gaussian(1.0, 1e-11)
    assert exact <= accounting._pld_epsilon(step, steps, 1e-11, grid) <= 1.02 * exact
    # and by far, whichever way it goes here
    rounded = distributions.composed(step, steps, grid).get_delta_for_epsilon(exact) - 1e-11
    assert 0 < abs(rounded) < accounting.FFT_ROUNDING * steps / 4


def test_the_allowance_is_needed():
    """The twin: plainly read, some of these figures are below the truth on every processor."""
    exact = dp_accounting.get_epsilon_gaussian(1.0, 1e-11)
    plain = [
        distributions.composed(poisson(1.0, math.sqrt(steps)), steps, grid).get_epsilon_for_delta(1e-11)
        for steps, grid in ROUNDED
    ]
    assert min(plain) < exact * (1 - 1e-6)


def test_blocks_never_hold_fewer_steps_than_were_taken(monkeypatch):
    monkeypatch.setattr(distributions, "_BLOCK", 10)
    exact = dp_accounting.get_epsilon_gaussian(1.25, 1e-5)  # a noise that no other test has cached
    assert exact <= bounds(1.0, 1.25 * math.sqrt(19), 19, 1e-5).pld <= exact * 1.1


def test_a_plain_pld_is_below_the_truth_where_the_fft_rounds():
    """The twin of the test above: without the allowance for rounding it would fail."""
    plain = []
    for grid in (2.5e-4, 1e-4, 5e-5, 3e-5):  # on some: see ROUNDED
        accountant = pld.PLDAccountant(RELATION, value_discretization_interval=grid)
        plain.append(accountant.compose(event(1.0, 100.0, 10_000)).get_epsilon(1e-11))
    assert min(plain) < dp_accounting.get_epsilon_gaussian(1.0, 1e-11)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("q", "sigma", "steps", "delta"), EACH)
def test_more_sampling_steps_or_less_noise_or_delta_costs_more(q, sigma, steps, delta):
    at = bounds(q, sigma, steps, delta).value
    assert at is not None and at > 0
    assert bounds(q * 0.9, sigma, steps, delta).value < at
    assert bounds(q, sigma * 1.1, steps, delta).value < at
    assert bounds(q, sigma, steps, delta * 2).value < at
    assert bounds(q, sigma, steps + max(1, steps // 10), delta).value > at


@pytest.mark.parametrize("steps", [range(1, 251, 12), pytest.param(range(1, 251), marks=pytest.mark.slow)], ids=str)
def test_epsilon_never_falls_from_step_to_step(steps):
    curve = [accounting.epsilon_bounds(poisson(0.02, 1.0), step, 1e-5, 250).value for step in steps]
    assert all(earlier <= later for earlier, later in itertools.pairwise(curve))


def test_delta_falls_as_epsilon_grows():
    curve = [deltas(0.02, 1.0, 250, epsilon).value for epsilon in (0.0, 0.5, 1, 2, 4, 8, 50)]
    assert all(lax > strict > 0 for lax, strict in itertools.pairwise(curve))


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta"),
    [
        (1e-7, 1.0, 10**7, 1e-9),  # the FFT can't resolve delta
        (1e-5, 50.0, 10**8, 1e-6),  # dp-accounting alone takes minutes
        (0.01, 0.1, 1_000, 1e-5),  # gigabytes on a fixed grid
        (1.0, 0.02, 10_000, 1e-5),
        (0.01, 0.001, 10, 1e-5),
        (0.02, 1.0, 10**12, 1e-5),
        (1.0, 1e6, 10**6, 1e-12),
        (0.5, 0.01, 10, 1e-5),
    ],
)
def test_extreme_settings_get_a_finite_bound(q, sigma, steps, delta):
    found = bounds(q, sigma, steps, delta)
    assert found.value is not None and math.isfinite(found.value) and found.value >= 0
    assert found.pld is not None or found.note
    share = deltas(q, sigma, steps, 1.0).value
    assert share is not None and share >= 0


def test_who_answered_and_why_is_told():
    both = bounds(0.02, 1.0, 250, 1e-5)
    assert (both.accountant, both.value, both.note) == ("PLD", both.pld, "")
    alone = bounds(0.01, 1.0, 10_000, 1e-12)
    assert (alone.accountant, alone.pld, alone.value) == ("RDP", None, alone.rdp)
    assert alone.note == "delta=1e-12 is below what PLD resolves in 10,000 steps; RDP alone"


def test_dropped_orders_are_not_logged(caplog):
    with caplog.at_level(logging.WARNING, logger="absl"):
        assert bounds(0.1, 0.31, 10, 1e-5).rdp is not None
    assert not caplog.records


@settings(max_examples=25, deadline=None)
@example(q=1e-4, sigma=5.0, steps=1, delta=1e-9)
@example(q=1e-4, sigma=0.5, steps=8, delta=4.2e-4)  # epsilon is 0
@example(q=0.9375, sigma=0.400390625, steps=179, delta=1e-9)  # epsilon is 752
@given(q=st.floats(1e-4, 1.0), sigma=st.floats(0.4, 20.0), steps=st.integers(1, 300), delta=st.floats(1e-9, 1e-3))
def test_bounds_order_property(q, sigma, steps, delta):
    found = bounds(q, sigma, steps, delta)
    assert found.value is not None
    # PLD has no figure where its own overflows
    assert 0 <= found.value <= min(bound for bound in (found.rdp, found.pld) if bound is not None)
    # what is reported at epsilon can't be more than the delta that epsilon was asked for, up to the grids: they are told apart
    # where epsilon itself is as small as a grid's step (q = 1e-4, sigma = 5, one step: epsilon = 1.07e-4)
    share = deltas(q, sigma, steps, found.value + 1e-5).value
    assert share is not None and share <= delta * 1.05 + 1e-12
    # the few orders that start a search come near the report
    assert accounting.guessed_epsilon(poisson(q, sigma), steps, delta) >= found.value * (1 - 1e-12)
