"""The distance of the convergence proof: its formulas by symbols, its properties by hypothesis, the lemma by its definition."""

import doctest
import importlib
import math

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from groupclip.theory import distance, inverse, largest_distance, least_norm, linear_inverse, small_level_constant

POSITIVE = st.floats(1e-3, 1e3)
R = st.floats(1.001, 100)
GROUPS = st.integers(1, 200)


@pytest.mark.parametrize("module", ["distance", "finer"])
def test_doctests(module):
    ran = doctest.testmod(importlib.import_module(f"groupclip.theory.{module}"))
    assert ran.attempted >= 5 and ran.failed == 0


# ------------------------------------------------------------------ the formulas


def printed(x, r, z, gamma):
    """M as the paper prints it."""
    return x * (gamma / ((r - 1) * (x + z / r) + gamma) - gamma / ((r + 1) * (x + z / r) + gamma))


def printed_inverse(y, r, z, gamma, under_root=2):
    a = z / r
    root = sympy.sqrt(a**2 + under_root * z * y + 2 * gamma * y + y**2)
    return (-a * gamma + (r**2 - 1) * a * y + r * gamma * y + gamma * root) / (2 * gamma - (r**2 - 1) * y)


def test_the_lemmas_formulas_follow():
    x, r, z, gamma, y = sympy.symbols("x r z gamma y", positive=True)
    assert residue(printed_inverse(y, r, z, gamma), y, r, z, gamma) == 0
    slope = sympy.diff(printed(x, r, z, gamma), x).subs(x, 0)
    assert sympy.simplify(1 / slope - (r**2 * (z + gamma) ** 2 - z**2) / (2 * z * gamma * r)) == 0


def test_twin_a_slip_in_the_inverse_is_seen():
    r, z, gamma, y = sympy.symbols("r z gamma y", positive=True)
    assert residue(printed_inverse(y, r, z, gamma, under_root=1), y, r, z, gamma) != 0


def residue(x, y, r, z, gamma):
    """Zero if and only if M(x) = y, cleared of fractions."""
    a = z / r
    M = 2 * gamma * x * (x + a)
    return sympy.simplify(
        sympy.expand(sympy.together(M - y * ((r - 1) * (x + a) + gamma) * ((r + 1) * (x + a) + gamma)))
    )


@settings(deadline=None)
@given(st.floats(0, 1e3), R, POSITIVE, POSITIVE, GROUPS)
def test_distance_is_the_printed_one(x, r, xi, gamma, groups):
    z = xi / math.sqrt(groups)
    a = sympy.Rational(z) / sympy.Rational(r)
    x_, r_, g = sympy.Rational(x), sympy.Rational(r), sympy.Rational(gamma)
    truth = x_ * (g / ((r_ - 1) * (x_ + a) + g) - g / ((r_ + 1) * (x_ + a) + g))
    assert float(distance(x, r=r, xi=xi, gamma=gamma, groups=groups)) == pytest.approx(float(truth), rel=1e-10)


# ------------------------------------------------------------------ its properties


@settings(deadline=None)
@given(st.floats(0, 1 - 1e-3), R, POSITIVE, POSITIVE, GROUPS)
def test_inverse(share, r, xi, gamma, groups):
    facts = {"r": r, "xi": xi, "gamma": gamma, "groups": groups}
    y = share * largest_distance(r=r, gamma=gamma)
    x = inverse(y, **facts)
    assert x >= 0
    assert float(distance(x, **facts)) == pytest.approx(y, rel=1e-9, abs=1e-300)


@settings(deadline=None)
@given(st.floats(1e-6, 1e3), R, POSITIVE, POSITIVE, GROUPS)
def test_distance_increases_and_stays_below_its_limit(x, r, xi, gamma, groups):
    facts = {"r": r, "xi": xi, "gamma": gamma, "groups": groups}
    assert 0 < distance(x, **facts) < distance(x * 1.01, **facts) < largest_distance(r=r, gamma=gamma)


def test_distance_is_negative_below_zero_where_the_paper_says_it_is_not():
    assert distance(-0.25, r=2.0, xi=1.0) < 0


@settings(deadline=None)
@given(st.floats(1.5, 20), st.floats(1e-2, 10), st.floats(1e-2, 10), GROUPS)
def test_the_asymptote_at_a_fixed_r(r, xi, gamma, groups):
    facts = {"r": r, "xi": xi, "gamma": gamma, "groups": groups}
    y = 1e-7 * largest_distance(r=r, gamma=gamma) * min(1.0, xi**2 / groups / gamma**2)
    assert float(inverse(y, **facts)) == pytest.approx(float(linear_inverse(y, **facts)), rel=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: distance(1.0, r=1.0, xi=1.0), "r=1.0 must be > 1"),
        (lambda: distance(-0.6, r=2.0, xi=1.0), "no gradient has a negative norm"),
        (lambda: inverse(0.02 / 3, r=2.0, xi=1.0), r"must lie in \[0, 2 gamma"),
        (lambda: inverse(-1e-9, r=2.0, xi=1.0), r"must lie in \[0, 2 gamma"),
        (lambda: inverse(float("nan"), r=2.0, xi=1.0), r"must lie in \[0, 2 gamma"),
        (lambda: linear_inverse(0.1, r=2.0, xi=0.0), "without gradient noise"),
        (lambda: least_norm(0.0, xi=1.0), "y=0.0 must be > 0"),
        (lambda: least_norm(0.1, xi=-1.0), "xi=-1.0 must be >= 0"),
        (lambda: least_norm(0.1, xi=1.0, gamma=0.0), "gamma=0.0 must be > 0"),
        (lambda: least_norm(0.1, xi=1.0, groups=0), "groups=0 must be >= 1"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# ------------------------------------------------------------------ the lemma


def alignment(g, deviation, gamma):
    """``<g, E[v / (||v|| + gamma)]>`` for v = g + deviation or g - deviation, each with probability 1/2."""
    return sum(g @ v / (np.linalg.norm(v) + gamma) for v in (g + deviation, g - deviation)) / 2


VECTORS = st.lists(st.floats(-5, 5), min_size=3, max_size=3).map(np.array)


@settings(deadline=None)
@given(VECTORS, VECTORS, R, st.floats(1e-2, 10))
def test_the_lemma(g, deviation, r, gamma):
    """For two-point noise, the smallest symmetric kind; the expectation of any other is a mixture of these."""
    xi = float(np.linalg.norm(deviation))
    floor = float(distance(np.linalg.norm(g) - xi / r, r=r, xi=xi, gamma=gamma)) / 2 if xi > 0 else 0.0
    assert alignment(g, deviation, gamma) >= max(floor, 0.0) - 1e-12  # max(M, 0): why Markov's inequality may be used


def test_twin_of_the_lemma_without_its_half_and_without_symmetry():
    g, deviation = np.array([1.0]), np.array([3.0])
    # r just above ||deviation|| / ||g||: noise within r ||g||, so that the lemma loses little but its half ...
    floor = max(float(distance(1 - 3 / r, r=r, xi=3.0, gamma=0.1)) for r in np.linspace(3.01, 60, 400))
    assert 2 * alignment(g, deviation, 0.1) >= floor > 0
    # ... and noise that isn't symmetric (mean zero: 3 with 1/4, -1 with 3/4 around g = 0.3) can point the wrong way
    wrong = 0.3 * sum(p * v / (abs(v) + 0.1) for p, v in ((0.25, 3.3), (0.75, -0.7)))
    assert wrong < 0


# ------------------------------------------------------------------ the best r


@settings(deadline=None)
@given(st.floats(1e-8, 1.0), st.floats(1e-2, 10), st.floats(1e-3, 1), GROUPS, st.floats(1e-6, 1 - 1e-6))
def test_no_other_r_is_better(y, xi, gamma, groups, share):
    norm, r = least_norm(y, xi=xi, gamma=gamma, groups=groups)
    other = math.sqrt(1 + 2 * gamma / y * share)
    if other > 1:
        there = math.sqrt(groups) * float(inverse(y, r=other, xi=xi, gamma=gamma, groups=groups)) + xi / other
        assert norm <= there * (1 + 1e-9)
    if r > 1 + 1e-6:  # and the one given is real
        assert math.sqrt(groups) * float(inverse(y, r=r, xi=xi, gamma=gamma, groups=groups)) + xi / r == pytest.approx(
            norm
        )


@pytest.mark.parametrize(("xi", "groups"), [(1.0, 1), (1.0, 75), (1e-3, 4), (30.0, 2)])
def test_the_limit_for_small_levels(xi, groups):
    norm, _ = least_norm(1e-12, xi=xi, groups=groups)
    assert norm / 1e-6 == pytest.approx(small_level_constant(xi=xi, groups=groups), rel=1e-3)


def papers_constant(xi, groups, gamma=0.01):
    return math.sqrt(2 / gamma) * (xi + gamma * math.sqrt(groups))


def test_the_papers_hyperbola_is_not_the_limit():
    """It takes the asymptote at fixed r to an r that grows: 3 sqrt(3)/4 too small for large noise, 2 too large for small."""
    assert small_level_constant(xi=1e4) / papers_constant(1e4, 1) == pytest.approx(3 * math.sqrt(3) / 4, rel=1e-4)
    assert small_level_constant(xi=1e-9) / papers_constant(1e-9, 1) == pytest.approx(1 / 2, rel=1e-3)
    # at the r that its hyperbola is least for, the formula that it stands for is 26 times as large (xi = 1)
    y, gamma, xi = 1e-10, 0.01, 1.0
    r = math.sqrt(xi / (y * (xi + gamma) ** 2 / (2 * xi * gamma)))
    hyperbola = float(linear_inverse(y, r=r, xi=xi)) + xi / r
    assert hyperbola == pytest.approx(papers_constant(xi, 1) * math.sqrt(y), rel=1e-4)
    assert float(inverse(y, r=r, xi=xi)) + xi / r > 20 * hyperbola


def test_one_third_by_symbols():
    """z >> gamma: with q^2 = s the constant is z / sqrt(2 gamma) times 1 / (q (1 - q^2)): at least 3 sqrt(3)/2, the paper has 2."""
    q = sympy.symbols("q", positive=True)
    (best,) = sympy.solve(sympy.diff(q * (1 - q**2), q), q)
    assert best**2 == sympy.Rational(1, 3)
    assert sympy.simplify(1 / (best * (1 - best**2)) / 2 - 3 * sympy.sqrt(3) / 4) == 0
