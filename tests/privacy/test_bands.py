"""Plans with correlated noise: their figures are those of ceil(T / b) rounds at b times the rate, and no others can be had."""

import dataclasses
import json
import math

import dp_accounting
import pytest
from dp_accounting.pld import pld_privacy_accountant

from benchmark import benchmark
from groupclip.privacy.bands import best_bands, prefix_noise
from groupclip.privacy.mechanism import Mechanism
from groupclip.privacy.selection import search_cost

PLAN = Mechanism(dataset_size=4_000, expected_batch_size=100, steps=90, noise_multiplier=1.1, adjacency="zero-out", bands=8)


def rounds_of(plan: Mechanism, sigma: float) -> dp_accounting.DpEvent:
    """What the plan amounts to, written without groupclip."""
    rate = plan.bands * plan.expected_batch_size / plan.dataset_size
    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
    return dp_accounting.SelfComposedDpEvent(step, math.ceil(plan.steps / plan.bands))


def accountant() -> pld_privacy_accountant.PLDAccountant:
    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    return pld_privacy_accountant.PLDAccountant(relation, value_discretization_interval=1e-4)


@pytest.mark.parametrize("bands", [2, 7, 8, 40])
def test_epsilon_is_that_of_the_event(bands):
    plan = dataclasses.replace(PLAN, bands=bands)
    expected = accountant().compose(rounds_of(plan, 1.1)).get_epsilon(1e-5)
    assert plan.epsilon(delta=1e-5) == pytest.approx(expected, rel=6e-3)  # the grids differ
    assert plan.epsilon(delta=1e-5) >= expected * (1 - 1e-3)


def test_calibrated_noise_is_that_of_the_event():
    plan = dataclasses.replace(PLAN, noise_multiplier=None).calibrate(epsilon=3.0, delta=1e-5)
    assert 2.97 <= plan.epsilon(delta=1e-5) <= 3.0
    step = plan.step
    spent = accountant().compose(rounds_of(plan, plan.noise_multiplier)).get_epsilon(1e-5)
    sigma = dp_accounting.calibrate_dp_mechanism(
        accountant, lambda sigma: rounds_of(plan, sigma), spent, 1e-5,
        bracket_interval=dp_accounting.ExplicitBracketInterval(0.9 * step.sigma, 1.1 * step.sigma), tol=1e-7,
    )  # fmt: skip
    assert plan.noise_multiplier == pytest.approx(sigma, rel=1e-4)
    # what it is not: a round more, or the rate of one band
    assert dataclasses.replace(plan, steps=97).epsilon(delta=1e-5) > 3.0
    assert dataclasses.replace(plan, bands=1, steps=plan.rounds()).epsilon(delta=1e-5) < 1.5


@pytest.mark.parametrize(("steps", "rounds"), [(0, 0), (1, 1), (8, 1), (9, 2), (64, 8), (90, 12)])
def test_rounds(steps, rounds):
    assert PLAN.rounds(steps) == rounds
    same = dataclasses.replace(PLAN, bands=1, expected_batch_size=800, steps=12)
    assert PLAN.epsilon(delta=1e-5, steps=steps) == same.epsilon(delta=1e-5, steps=rounds)
    assert PLAN.delta(epsilon=1.0, steps=steps) == same.delta(epsilon=1.0, steps=rounds)


def test_a_search_counts_rounds():
    same = dataclasses.replace(PLAN, bands=1, expected_batch_size=800, steps=12)
    assert search_cost(PLAN, delta=1e-5, mean_runs=5).epsilon == search_cost(same, delta=1e-5, mean_runs=5).epsilon


def test_noise_that_was_begun_anew_costs_rounds_and_says_so():
    more = PLAN.spent(delta=1e-5, rounds=14)
    same = dataclasses.replace(PLAN, bands=1, expected_batch_size=800, steps=14)
    assert more.epsilon == pytest.approx(same.epsilon(delta=1e-5), rel=1e-6) and more.epsilon > PLAN.epsilon(delta=1e-5)
    assert PLAN.delta_curve([1.0, 2.0], rounds=14) == pytest.approx(same.delta_curve([1.0, 2.0], steps=14), rel=1e-6)
    assert PLAN.delta(epsilon=1.0, rounds=14) > PLAN.delta(epsilon=1.0)
    assert "steps in one go: 2" in more.note and "anew" not in PLAN.spent(delta=1e-5).note
    with pytest.raises(ValueError, match=r"rounds=11 must be >= 12"):
        PLAN.spent(delta=1e-5, rounds=11)


def test_parts_that_are_drawn_whole_are_exact():
    whole = dataclasses.replace(PLAN, bands=40)
    assert whole.part_rate == 1.0 and whole.spent(delta=1e-5).accountant == "exact"


def test_one_band_is_the_plan_it_was():
    plain = dataclasses.replace(PLAN, bands=1)
    assert "bands" not in plain.to_dict() and Mechanism.from_dict(plain.to_dict()) == plain
    assert plain.rounds() == plain.steps and plain.part_rate == plain.sample_rate
    assert Mechanism.from_dict(PLAN.to_dict()) == PLAN and PLAN.to_dict()["bands"] == 8


REFUSED = {
    "add or remove": ({"adjacency": "add-or-remove-one"}, r"bands=8 with adjacency='add-or-remove-one'.*use adjacency='zero-out'"),
    "replace": ({"adjacency": "replace-one"}, r"use adjacency='zero-out'"),
    "truncated": ({"sampling": "truncated-poisson"}, r"bands=8 with sampling='truncated-poisson'.*use sampling='poisson'"),
    "full batches": ({"sampling": "full-batch", "expected_batch_size": 4_000}, r"use sampling='poisson'"),
    "too many": ({"bands": 41}, r"bands=41 is more than 40"),
    "clients": ({"unit": "client"}, r"bands=8 with unit='client'.*use bands=1"),
    "none": ({"bands": 0}, r"bands=0 must be >= 1"),
    "words": ({"bands": "many"}, r"must be a whole number, or 'auto'"),
    "found with noise that is given": ({"bands": "auto"}, r"leave noise_multiplier out"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_accounted_is_refused_with_the_fix(name):
    changes, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(PLAN, **changes)


def test_several_samples_of_one_person_have_no_figure():
    with pytest.raises(ValueError, match=r"samples_per_user=2 can't be accounted with bands=8"):
        PLAN.spent(delta=1e-5, samples_per_user=2)


def test_how_many_bands_is_found_with_the_noise():
    open_ = Mechanism(dataset_size=60_000, expected_batch_size=1_000, steps=120, adjacency="zero-out", bands="auto")
    with pytest.raises(ValueError, match=r"mechanism\.calibrate"):
        open_.rounds()
    asked = []

    def calibrated(plan):
        """Quick: as if epsilon followed rounds and rate alone."""
        asked.append(plan.bands)
        return dataclasses.replace(plan, noise_multiplier=0.5 + plan.part_rate * math.sqrt(plan.rounds()))

    found = best_bands(open_, calibrated)
    every = {b: prefix_noise(calibrated(dataclasses.replace(open_, bands=b))) for b in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)}
    assert found.bands == min(every, key=every.__getitem__) and asked[0] == 1
    assert prefix_noise(found) < 0.9 * every[1]


def test_auto_falls_back_to_one_band_where_more_do_not_help():
    """Noise that grows as the rate does (hardly any amplification is lost by one band): nothing is gained."""
    open_ = Mechanism(dataset_size=1_000, expected_batch_size=400, steps=2, adjacency="zero-out", bands="auto")
    found = best_bands(open_, lambda plan: dataclasses.replace(plan, noise_multiplier=plan.band_count * 1.0))
    assert found.bands == 1


def test_calibrate_resolves_auto():
    open_ = Mechanism(dataset_size=2_000, expected_batch_size=400, steps=10, adjacency="zero-out", bands="auto")
    plan = open_.calibrate(epsilon=8.0, delta=1e-5)
    assert plan.bands in (2, 3, 4) and 7.9 <= plan.epsilon(delta=1e-5) <= 8.0
    for bands in (1, 2, 3, 4):
        other = dataclasses.replace(open_, bands=bands).calibrate(epsilon=8.0, delta=1e-5)
        assert prefix_noise(plan) <= prefix_noise(other)


def test_the_page_has_the_tables_of_its_results():
    module = benchmark("correlated")
    page, facts = module.PAGE.read_text(encoding="utf-8"), json.loads(module.FACTS.read_text(encoding="utf-8"))
    assert set(facts) == {"gains", "costs", "trained"} and page == module.with_tables(page, facts)
    for row in facts["trained"]:
        assert len(row["DP-SGD"]["runs"]) == len(row["correlated"]["runs"]) == 10
        assert row["better"] == (row["gain"] > 2 * row["standard_error"])


def test_a_gain_of_the_page_is_what_the_library_computes():
    facts = json.loads(benchmark("correlated").FACTS.read_text(encoding="utf-8"))
    row = next(row for row in facts["gains"] if (row["samples"], row["epochs"], row["epsilon"]) == (67_000, 3, 8.0))
    one = Mechanism(
        dataset_size=67_000, expected_batch_size=1_000, steps=201, adjacency="zero-out", noise_multiplier=row["sigma"]
    )
    banded = dataclasses.replace(one, bands=8, noise_multiplier=row["bands"]["8"]["sigma"])
    assert one.epsilon(delta=1e-5) == pytest.approx(8.0, rel=0.01)
    assert banded.epsilon(delta=1e-5) == pytest.approx(8.0, rel=0.01)
    assert prefix_noise(banded) / prefix_noise(one) - 1 == pytest.approx(row["bands"]["8"]["change"], abs=1e-6)
    assert row["bands"]["8"]["change"] < -0.4
