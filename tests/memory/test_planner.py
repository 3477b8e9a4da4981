"""The planners against brute force over every contiguous partition, and over every choice of norm methods."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark import benchmark
from groupclip.memory.cost import LayerCost, Option, group_peak
from groupclip.memory.fact import Fact
from groupclip.memory.methods import least_bytes, least_seconds
from groupclip.memory.planner import greatest, least_peak, least_peaks, least_sum
from groupclip.memory.trace import Linear


def partitions(n: int, most: int):
    """The starts of every partition of n layers into at most ``most`` contiguous groups."""
    for cuts in range(min(n, most)):
        for inner in itertools.combinations(range(1, n), cuts):
            yield (0, *inner)


@st.composite
def costs(draw) -> np.ndarray:
    """Any interval cost: no monotony is assumed."""
    n = draw(st.integers(1, 7))
    cost = np.full((n, n), math.inf)
    for s in range(n):
        for e in range(s, n):
            cost[s, e] = draw(st.integers(0, 30))
    return cost


@st.composite
def networks(draw) -> tuple[LayerCost, ...]:
    number = st.integers(0, 20)

    def option(method: str) -> Option:
        held = draw(number)
        level = held + draw(number)
        shared = {i: 3 * i for i in draw(st.sets(st.integers(1, 3)))}
        return Option(
            method, level + draw(number), level, held, draw(number), float(draw(number)), tuple(shared.items()),
            draw(number), method == "alone",
        )  # fmt: skip

    n = draw(st.integers(1, 5))
    ways = st.sampled_from((("gram",), ("gram", "instantiated"), ("gram", "alone"), ("gram", "instantiated", "alone")))
    return tuple(LayerCost(str(i), draw(number), tuple(option(m) for m in draw(ways))) for i in range(n))


def choices(layers: tuple[LayerCost, ...], starts: tuple[int, ...], end: int | None = None):
    """Every choice of options in these groups: what is for a layer alone is no option in other groups."""
    ends = [*starts[1:], len(layers) if end is None else end + 1]
    sizes = {i: e - s for s, e in zip(starts, ends, strict=True) for i in range(s, e)}
    return itertools.product(
        *(
            [j for j, option in enumerate(layer.options) if not option.alone or sizes.get(i) == 1]
            for i, layer in enumerate(layers)
        )
    )


def peak(layers: tuple[LayerCost, ...], chosen: tuple[int, ...], starts: tuple[int, ...]) -> int:
    ends = [*(s - 1 for s in starts[1:]), len(layers) - 1]
    return max(group_peak(layers, chosen, s, e) for s, e in zip(starts, ends, strict=True))


@given(costs(), st.integers(1, 8))
@settings(max_examples=200, deadline=None)
def test_least_peak_is_the_least_of_all_partitions(cost: np.ndarray, groups: int) -> None:
    starts, value = least_peak(cost, groups)
    assert len(starts) <= groups
    assert greatest(cost, starts) == value
    assert value == min(greatest(cost, p) for p in partitions(len(cost), groups))


@given(costs())
@settings(max_examples=100, deadline=None)
def test_the_least_peaks_are_those_of_each_number_of_groups_that_helps(cost: np.ndarray) -> None:
    n = len(cost)
    least = [min(greatest(cost, p) for p in partitions(n, m)) for m in range(1, n + 1)]
    helps = [m for m in range(1, n + 1) if m == 1 or least[m - 1] < least[m - 2]]
    found = least_peaks(cost, n)
    assert [len(starts) for starts, _ in found] == helps
    assert [value for _, value in found] == [least[m - 1] for m in helps] == [greatest(cost, s) for s, _ in found]


@given(costs(), st.integers(1, 8))
@settings(max_examples=200, deadline=None)
def test_least_sum(cost: np.ndarray, groups: int) -> None:
    def total(starts: tuple[int, ...]) -> float:
        ends = [*(s - 1 for s in starts[1:]), len(cost) - 1]
        return sum(cost[s, e] for s, e in zip(starts, ends, strict=True))

    starts = least_sum(cost, groups)
    assert starts is not None
    assert len(starts) <= groups
    assert total(starts) == min(total(p) for p in partitions(len(cost), groups))


@given(networks())
@settings(max_examples=150, deadline=None)
def test_methods_with_the_least_bytes(layers: tuple[LayerCost, ...]) -> None:
    table = least_bytes(layers)
    for s in range(len(layers)):
        for e in range(s, len(layers)):
            best = min(group_peak(layers, c, s, e) for c in choices(layers, (s,), e))
            assert table.cost[s, e] == best
            own = (*(0,) * s, *table.choices(s, e), *(0,) * (len(layers) - e - 1))
            assert own in set(choices(layers, (s,), e))
            assert group_peak(layers, own, s, e) == best


@given(networks(), st.integers(1, 5), st.integers(0, 150))
@settings(max_examples=150, deadline=None)
def test_groups_and_methods_together_with_the_least_time_within_a_bound(layers, groups: int, bound: int) -> None:
    def seconds(c: tuple[int, ...]) -> float:
        return sum(layer.options[i].seconds for layer, i in zip(layers, c, strict=True))

    table = least_seconds(layers, bound)
    starts = least_sum(table.cost, groups)
    fitting = [
        seconds(c) for p in partitions(len(layers), groups) for c in choices(layers, p) if peak(layers, c, p) <= bound
    ]
    if starts is None:
        assert not fitting
        return
    ends = [*(s - 1 for s in starts[1:]), len(layers) - 1]
    chosen = tuple(i for s, e in zip(starts, ends, strict=True) for i in table.choices(s, e))
    assert chosen in set(choices(layers, starts))
    assert peak(layers, chosen, starts) <= bound
    assert seconds(chosen) == min(fitting)


@given(st.lists(st.tuples(*[st.integers(1, 9)] * 3), min_size=1, max_size=8), st.integers(1, 8))
@settings(max_examples=200, deadline=None)
def test_the_fact_is_planned_exactly_by_bisection(shapes, groups: int) -> None:
    fact = Fact(tuple(Linear(*shape) for shape in shapes))
    starts, value = fact.plan(groups)
    assert len(starts) <= groups
    assert fact.peak(starts) == value == min(fact.peak(p) for p in partitions(len(shapes), groups))
    # and by the dynamic programme, for which it is one interval cost of many
    n = len(shapes)
    a, p = fact.inputs, [0, *fact.outputs]
    cost = np.array([[a[e] + p[e + 1] - p[s] if s <= e else math.inf for e in range(n)] for s in range(n)])
    assert least_peak(cost, groups)[1] == value


def test_the_fact_of_two_layers_by_hand() -> None:
    # inputs 2*3 + 4*5 = 26 are there when the backward pass begins; all-layer holds outputs 2*7 + 4*1 = 18 besides
    fact = Fact((Linear(2, 3, 7), Linear(4, 5, 1)))
    assert fact.peak((0,)) == 26 + 18
    assert fact.peak((0, 1)) == max(26 + 4, 6 + 14)


@pytest.mark.parametrize(("layers", "exponent"), [(9, 4.3), (18, 11.8)])
def test_bell_numbers_as_the_paper_gives_them(layers: int, exponent: float) -> None:
    assert round(math.log10(benchmark("groupings").bell(layers)), 1) == exponent


def test_small_bell_numbers() -> None:
    bell = benchmark("groupings").bell
    assert [bell(n) for n in range(7)] == [1, 1, 2, 5, 15, 52, 203]
