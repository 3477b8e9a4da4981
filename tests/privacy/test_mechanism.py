import dataclasses
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupclip.errors import PrivacyViolation
from groupclip.privacy import accounting, calibration
from groupclip.privacy.mechanism import Mechanism
from groupclip.privacy.sampled_step import Bounds
from groupclip.privacy.spent import PrivacySpent, default_delta
from groupclip.sampling.draws import drawn

PLAN = {"dataset_size": 50_000, "expected_batch_size": 1_000, "steps": 250}
PAPER = Mechanism(**PLAN)


@pytest.mark.parametrize("epsilon", [2.0, 8.0])
@pytest.mark.parametrize("delta", [1e-5, 1 / (2 * 50_000)])
def test_the_papers_settings_calibrate(epsilon, delta):
    """n = 50,000, B = 1,000, 5 epochs."""
    mechanism = PAPER.calibrate(epsilon=epsilon, delta=delta)
    assert 0.99 * epsilon <= mechanism.epsilon(delta=delta) <= epsilon
    assert mechanism.delta(epsilon=epsilon) <= delta
    assert dataclasses.replace(mechanism, noise_multiplier=None) == PAPER


@settings(max_examples=8, deadline=None)
@given(
    epsilon=st.floats(0.1, 30),
    delta=st.sampled_from([1e-10, 1e-7, 1e-5, 1e-3]),
    size=st.integers(10, 10**6),
    share=st.floats(1e-3, 1),
    steps=st.sampled_from([1, 10, 300, 3_000]),
)
def test_calibration_meets_its_target_from_below(epsilon, delta, size, share, steps):
    plan = Mechanism(dataset_size=size, expected_batch_size=max(1, size * share), steps=steps)
    mechanism = plan.calibrate(epsilon=epsilon, delta=delta)
    assert 0.99 * epsilon <= mechanism.epsilon(delta=delta) <= epsilon


def test_calibration_names_what_is_feasible():
    with pytest.raises(
        ValueError, match=r"epsilon=1e\+09 is more than this plan can spend: .* ask for at most epsilon="
    ):
        PAPER.calibrate(epsilon=1e9, delta=1e-5)
    with pytest.raises(ValueError, match=r"epsilon=1e-09 is out of reach: even noise_multiplier=1e\+06 .* fewer steps"):
        Mechanism(dataset_size=10, expected_batch_size=10, steps=10**9).calibrate(epsilon=1e-9, delta=1e-12)


def test_the_search_refuses_a_jump_over_the_target():
    def step_function(sigma: float) -> float:
        return 4.0 if sigma < 1 else 1.0

    with pytest.raises(ValueError, match=r"epsilon=2 can't be met within 1 %: .* pass one of them"):
        calibration.least_noise(step_function, 1.5, 2.0)


@settings(max_examples=50, deadline=None)
@given(target=st.floats(1e-3, 40), scale=st.floats(0.1, 30), power=st.floats(0.3, 4))
def test_the_search_on_closed_forms(target, scale, power):
    def spends(sigma: float) -> float:
        return scale / sigma**power

    least = (scale / target) ** (1 / power)
    if not calibration.SMALLEST_SIGMA * 1.3 < least < calibration.LARGEST_SIGMA / 4:
        return
    enough = calibration.enough_noise(spends, target)
    assert least <= enough * (1 + 1e-9) and enough <= least * 1.03
    assert 0.99 * target <= spends(calibration.least_noise(spends, enough, target)) <= target


@pytest.mark.parametrize("sampling", ["poisson", "truncated-poisson"])
def test_the_rate_that_is_accounted_is_the_rate_at_which_samples_are_drawn(sampling):
    """2e7 draws, so 7 standard errors are 0.24 % of the rate: false-alarm rate 3e-12. The key is fixed."""
    adjacency = "zero-out" if sampling == "truncated-poisson" else "add-or-remove-one"
    facts = {"dataset_size": 10_000_000, "expected_batch_size": 3_000_000, "steps": 20, "noise_multiplier": 1.0}
    mechanism = Mechanism(**facts, sampling=sampling, adjacency=adjacency)
    assert mechanism.step.rate == pytest.approx(0.3, rel=1e-12)
    entered = sum(len(drawn(mechanism, key=bytes(32), step=step)) for step in range(2))
    assert abs(entered / (2 * mechanism.dataset_size * mechanism.step.rate) - 1) < 7 * math.sqrt(0.7 / 0.3 / 2e7)


def test_spent_over_a_run():
    mechanism = Mechanism(**PLAN, noise_multiplier=1.0)
    assert mechanism.spent(delta=1e-5, steps=0) == PrivacySpent(
        epsilon=0.0, delta=1e-5, steps=0, accountant="none", rdp=0.0, pld=0.0
    )
    assert mechanism.delta(epsilon=0, steps=0) == 0
    half, whole = mechanism.spent(delta=1e-5, steps=125), mechanism.spent(delta=1e-5)
    assert (half.steps, whole.steps, whole.accountant) == (125, 250, "PLD")
    assert 0 < half.epsilon < whole.epsilon == whole.pld == mechanism.epsilon(delta=1e-5) < whole.rdp
    assert mechanism.delta(epsilon=whole.epsilon) == pytest.approx(1e-5, rel=0.02)
    assert mechanism.delta(epsilon=1e4) > 0  # a Gaussian is never pure


def test_no_noise_has_no_epsilon():
    mechanism = Mechanism(**PLAN, noise_multiplier=0)
    for ask in (lambda: mechanism.epsilon(delta=1e-5), lambda: mechanism.delta(epsilon=1.0)):
        with pytest.raises(PrivacyViolation, match=r"noise_multiplier=0: the run adds no noise, so it isn't private"):
            ask()


@pytest.mark.parametrize("sigma", [5e-324, 1e-200, 9e-4, 2e9, 1e300])
def test_noise_beyond_the_accountants_arithmetic(sigma):
    mechanism = Mechanism(**PLAN, noise_multiplier=sigma)
    for ask in (lambda: mechanism.epsilon(delta=1e-5), lambda: mechanism.delta(epsilon=1.0)):
        with pytest.raises(
            ValueError, match=r"noise_multiplier=.* is outside \[0\.001, 1e\+09\], .*mechanism\.calibrate"
        ):
            ask()


@pytest.mark.parametrize("sigma", [1e-3, 1e9])
@pytest.mark.parametrize("batch", [1, 49_999, 50_000])
def test_the_least_and_the_most_noise(sigma, batch):
    mechanism = Mechanism(dataset_size=50_000, expected_batch_size=batch, steps=250, noise_multiplier=sigma)
    spent = mechanism.spent(delta=1e-5)
    assert spent.epsilon == 0 if sigma > 1 else 1e3 < spent.epsilon < math.inf
    assert 0 < mechanism.delta(epsilon=1.0) <= 1


def test_no_bound_is_an_error_and_not_a_figure(monkeypatch):
    nothing = Bounds(rdp=None, pld=None)
    assert nothing.value is None
    monkeypatch.setattr(accounting, "epsilon_bounds", lambda *_: nothing)
    monkeypatch.setattr(accounting, "delta_bounds", lambda *_: nothing)
    mechanism = Mechanism(**PLAN, noise_multiplier=0.5)
    for ask in (lambda: mechanism.epsilon(delta=1e-5), lambda: mechanism.delta(epsilon=1.0)):
        with pytest.raises(ValueError, match=r"noise_multiplier=0\.5 is so little noise that no accountant gives"):
            ask()


def test_an_uncalibrated_mechanism_says_how_to_go_on():
    with pytest.raises(ValueError, match=r"noise_multiplier is None: .* mechanism\.calibrate\(epsilon=, delta=\)"):
        PAPER.epsilon(delta=1e-5)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"dataset_size": 0}, ValueError, "dataset_size=0 must be >= 1"),
        ({"dataset_size": 50_000.0}, TypeError, r"dataset_size=50000\.0 must be a whole number \(int\), not float"),
        ({"dataset_size": True}, TypeError, "dataset_size=True must be a whole number"),
        ({"dataset_size": 10**400}, ValueError, r"dataset_size=1000.* is larger than 2\*\*53"),
        ({"expected_batch_size": 0}, ValueError, "expected_batch_size=0 must be > 0"),
        ({"expected_batch_size": -3.5}, ValueError, r"expected_batch_size=-3\.5 must be > 0"),
        ({"expected_batch_size": math.nan}, ValueError, "expected_batch_size=nan must be finite"),
        ({"expected_batch_size": "64"}, TypeError, "expected_batch_size='64' must be a number, not str"),
        ({"expected_batch_size": 50_001}, ValueError, "expected_batch_size=50001 is larger than dataset_size=50000"),
        ({"steps": 0}, ValueError, "steps=0 must be >= 1"),
        ({"steps": 2.5}, TypeError, r"steps=2\.5 must be a whole number"),
        ({"noise_multiplier": -1.0}, ValueError, r"noise_multiplier=-1\.0 must be >= 0"),
        ({"noise_multiplier": math.inf}, ValueError, "noise_multiplier=inf must be finite"),
        ({"noise_multiplier": True}, TypeError, "noise_multiplier=True must be a number, not bool"),
        (
            {"adjacency": "swap"},
            ValueError,
            "adjacency='swap' is unknown; use one of add-or-remove-one, zero-out, replace-one",
        ),
        ({"sampling": "shuffle"}, ValueError, "sampling='shuffle' is unknown; use one of poisson, truncated-poisson,"),
        ({"unit": "family"}, ValueError, "unit='family' is unknown; use one of sample, user"),
        ({"max_batch_size": 2_000}, ValueError, "max_batch_size=2000 has no meaning with sampling='poisson'"),
        (
            {"max_batch_size": 999, "sampling": "truncated-poisson", "adjacency": "zero-out"},
            ValueError,
            r"max_batch_size=999 must be in \[1000, 50000\]",
        ),
        (
            {"sampling": "full-batch"},
            ValueError,
            "expected_batch_size=1000 must be dataset_size=50000 with sampling='full-b",
        ),
        (
            {"sampling": "without-replacement", "adjacency": "replace-one", "expected_batch_size": 10.5},
            ValueError,
            r"expected_batch_size=10\.5 must be whole with sampling='without-replacement'",
        ),
    ],
)
def test_wrong_facts_are_named(changed, error, message):
    with pytest.raises(error, match=message):
        Mechanism(**{**PLAN, **changed})


@pytest.mark.parametrize("delta", [0, -1e-5, 1e-13, 1, 2.0, math.nan])
def test_wrong_delta(delta):
    with pytest.raises(ValueError, match=r"delta=.* must be (in \[1e-12, 1\)|finite)"):
        Mechanism(**PLAN, noise_multiplier=1.0).epsilon(delta=delta)


def test_wrong_questions():
    mechanism = Mechanism(**PLAN, noise_multiplier=1.0)
    with pytest.raises(ValueError, match=r"steps=251 is past the plan of 250 steps"):
        mechanism.epsilon(delta=1e-5, steps=251)
    with pytest.raises(ValueError, match=r"steps=-1 must be >= 0"):
        mechanism.epsilon(delta=1e-5, steps=-1)
    with pytest.raises(ValueError, match=r"epsilon=-1\.0 must be >= 0"):
        mechanism.delta(epsilon=-1)
    with pytest.raises(ValueError, match=r"epsilon=0 must be > 0"):
        mechanism.calibrate(epsilon=0, delta=1e-5)


def test_full_batches_are_allowed():
    assert Mechanism(dataset_size=7, expected_batch_size=7, steps=1, noise_multiplier=1.0).sample_rate == 1.0


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PAPER.steps = 1  # pyright: ignore


def test_one_plan_has_one_hash_however_it_is_spelt():
    spelt = Mechanism(dataset_size=np.int64(50_000), expected_batch_size=1e3, steps=np.int32(250))
    assert spelt == PAPER and spelt.plan_hash == PAPER.plan_hash
    assert json.dumps(spelt.to_dict()) == json.dumps(PAPER.to_dict())


def test_the_hash_covers_every_field():
    others = {
        "dataset_size": 50_001,
        "expected_batch_size": 1_001,
        "steps": 251,
        "noise_multiplier": 1.0,
        "adjacency": "zero-out",
        "unit": "user",
    }
    banded = dataclasses.replace(PAPER, adjacency="zero-out", bands=3)
    assert {*others, "sampling", "max_batch_size", "bands"} == {field.name for field in dataclasses.fields(Mechanism)}
    assert {field.name for field in dataclasses.fields(Mechanism)} == set(banded.to_dict()) == {*PAPER.to_dict(), "bands"}
    varied = [dataclasses.replace(PAPER, **{name: value}) for name, value in others.items()]
    varied += [banded, dataclasses.replace(banded, bands=4)]
    zero_out = dataclasses.replace(PAPER, adjacency="zero-out")
    varied += [
        dataclasses.replace(zero_out, sampling="truncated-poisson", max_batch_size=cap) for cap in (1_300, 1_301)
    ]
    hashes = {mechanism.plan_hash for mechanism in (PAPER, *varied)}
    assert len(hashes) == len(varied) + 1


def test_dict_round_trip():
    mechanism = Mechanism(**PLAN, noise_multiplier=1.1)
    assert Mechanism.from_dict(json.loads(json.dumps(mechanism.to_dict()))) == mechanism
    with pytest.raises(ValueError, match=r"unknown \['noise_multiplyer'\], missing \[\]; the keys are dataset_size"):
        Mechanism.from_dict({**PLAN, "noise_multiplyer": 1.1})
    with pytest.raises(ValueError, match=r"missing \['steps'\]"):
        Mechanism.from_dict({"dataset_size": 10, "expected_batch_size": 1})


@pytest.mark.parametrize(("size", "delta"), [(1, 1e-5), (100, 1e-5), (50_000, 1e-5), (10**6, 5e-7), (10**13, 1e-12)])
def test_default_delta(size, delta):
    assert default_delta(size) == pytest.approx(delta)


def test_import_is_light():
    """The accountants take more than a second to import; a sampler or a resumed run needs none of them."""
    heavy = "import sys, groupclip.privacy.mechanism; print(*{'dp_accounting', 'scipy', 'cryptography'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


@pytest.mark.parametrize("accountant", ["PLD", "RDP"])
def test_a_named_accountant_calibrates_and_answers_alone(accountant):
    mechanism = PAPER.calibrate(epsilon=2.0, delta=1e-5, accountant=accountant)
    spent = mechanism.spent(delta=1e-5, accountant=accountant)
    assert spent.accountant == accountant
    assert 1.98 <= spent.epsilon <= 2.0
    assert (spent.pld is None, spent.rdp is None) == (accountant == "RDP", accountant == "PLD")
    assert mechanism.epsilon(delta=1e-5) <= spent.epsilon  # the smallest is no larger than any


@pytest.mark.parametrize(
    ("facts", "accountant", "message"),
    [
        ({}, "GDP", "accountant='GDP' is unknown; use one of PLD, RDP, exact"),
        ({}, "exact", "accountant='exact' has no sound bound for sampling='poisson'.*use PLD or RDP"),
        (
            {"adjacency": "replace-one"},
            "RDP",
            "no sound bound for sampling='poisson' with adjacency='replace-one'; use PLD",
        ),
        ({"sampling": "without-replacement", "adjacency": "replace-one"}, "PLD", "use RDP"),
        ({"sampling": "truncated-poisson", "adjacency": "zero-out"}, "RDP", "use PLD"),
    ],
)
def test_an_accountant_that_can_not_answer_is_refused_by_name(facts, accountant, message):
    plan = Mechanism(**PLAN, **facts)
    with pytest.raises(ValueError, match=message):
        plan.calibrate(epsilon=2.0, delta=1e-5, accountant=accountant)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(plan, noise_multiplier=1.0).spent(delta=1e-5, accountant=accountant)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("target", [1e-3, 1e-4])
def test_an_epsilon_that_rdp_can_not_reach_is_calibrated_by_pld(target):
    """At a tiny rate RDP of a few orders spends more than that, however much the noise."""
    plan = Mechanism(dataset_size=10**9, expected_batch_size=1, steps=10**8)
    found = plan.calibrate(epsilon=target, delta=1e-5)
    assert 0.99 * target <= found.epsilon(delta=1e-5) <= target
