import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupclip.privacy.allocation import ALLOCATIONS, noise_multiplier_of, noise_stds

BOUNDS, SIZES = {"a": 0.6, "b": 0.8, "c": 2.0}, {"a": 10, "b": 1_000, "c": 30}

groups = st.dictionaries(
    st.text(min_size=1, max_size=3), st.tuples(st.floats(1e-6, 1e6), st.integers(1, 10**9)), min_size=1, max_size=40
)


@settings(max_examples=100, deadline=None)
@given(facts=groups, sigma=st.floats(0.01, 1e3), allocation=st.sampled_from(ALLOCATIONS))
def test_every_allocation_amounts_to_sigma(facts, sigma, allocation):
    bounds, sizes = {g: r for g, (r, _) in facts.items()}, {g: d for g, (_, d) in facts.items()}
    stds = noise_stds(allocation, bounds, sizes, sigma)
    assert noise_multiplier_of(stds, bounds) == pytest.approx(sigma, rel=1e-9)
    assert noise_stds(stds, bounds, sizes, sigma * (1 - 1e-9)) == stds  # given back, it is accepted
    with pytest.raises(
        ValueError, match=r"this allocation amounts to noise_multiplier=.* Multiply every standard deviation by"
    ):
        noise_stds({g: s * (1 - 1e-6) for g, s in stds.items()}, bounds, sizes, sigma)  # the twin


def test_by_hand():
    assert noise_stds("equal", {"a": 3.0, "b": 4.0}, {"a": 1, "b": 1}, 2.0) == {"a": 10.0, "b": 10.0}
    assert noise_stds("threshold", {"a": 3.0, "b": 4.0}, {"a": 1, "b": 1}, 2.0) == pytest.approx(
        {"a": 6 * math.sqrt(2), "b": 8 * math.sqrt(2)}
    )
    assert noise_stds("equal", BOUNDS, SIZES, 0.0) == {"a": 0.0, "b": 0.0, "c": 0.0}
    assert noise_multiplier_of({"a": 0.0, "b": 1.0}, {"a": 1.0, "b": 1.0}) == 0.0


def test_by_dimension_has_the_least_variance():
    def variance(stds: dict[str, float]) -> float:
        return sum(SIZES[g] * s * s for g, s in stds.items())

    best = noise_stds("dimension", BOUNDS, SIZES, 1.5)
    assert all(variance(noise_stds(other, BOUNDS, SIZES, 1.5)) > variance(best) for other in ("equal", "threshold"))
    for group in BOUNDS:  # and no neighbour of it that amounts to the same has less
        for factor in (0.99, 1.01):
            moved = {g: s * (factor if g == group else 1) for g, s in best.items()}
            scale = 1.5 / noise_multiplier_of(moved, BOUNDS)
            assert variance({g: s * scale for g, s in moved.items()}) > variance(best)


def test_other_releases_and_rounding_use_the_budget_up():
    assert noise_multiplier_of({"a": 2.0}, {"a": 1.0}, others=[2.0]) == pytest.approx(math.sqrt(2))
    assert noise_multiplier_of({"a": 2.0}, {"a": 1.0}, rounding=0.5) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("allocation", "message"),
    [
        ("fair", "allocation='fair' is unknown; use one of equal, threshold, dimension"),
        ({"a": 1.0}, "the allocation is of the groups"),
        ({"a": 1.0, "b": 0.0, "c": 1.0}, "the noise of group 'b' is 0.0"),
        ({"a": 1.0, "b": math.nan, "c": 1.0}, "the noise of group 'b' is nan"),
    ],
)
def test_wrong_allocations(allocation, message):
    with pytest.raises(ValueError, match=message):
        noise_stds(allocation, BOUNDS, SIZES, 1.0)
    with pytest.raises(ValueError, match="both need every group"):
        noise_stds("equal", BOUNDS, {"a": 1}, 1.0)
