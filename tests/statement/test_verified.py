"""A record is computed again from its facts: what was changed in it is named."""

import copy
import dataclasses
import json
import subprocess
import sys

import pytest

from groupclip.cli.app import run
from groupclip.privacy.earlier import EarlierTraining
from groupclip.privacy.mechanism import Mechanism
from groupclip.statement.record import PrivacyRecord
from groupclip.statement.terms import UNITS
from groupclip.statement.verified import differences

PLAN = Mechanism(dataset_size=1_000, expected_batch_size=100, steps=20, noise_multiplier=2.0)


def facts(mechanism: Mechanism = PLAN, **changed) -> dict:
    sigma = mechanism.noise_multiplier
    given = {
        "mechanism": mechanism, "delta": 1e-5, "steps_by_sampler": {"groupclip": 15, "user": 0},
        "thresholds": {"first": 0.6, "second": 0.8}, "noise_std": {"first": sigma, "second": sigma}, "clip": "automatic",
        "partition_style": "uniform:2", "secure_noise": True,
    }  # fmt: skip
    return json.loads(json.dumps(PrivacyRecord(**{**given, **changed}).to_dict()))


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"unit": "user"},
        {"adjacency": "replace-one"},
        {"sampling": "truncated-poisson", "adjacency": "zero-out"},
        {"sampling": "full-batch", "expected_batch_size": 1_000},
        {"sampling": "without-replacement", "adjacency": "replace-one"},
        {"noise_multiplier": 0},
    ],
)
def test_a_record_as_it_was_written_differs_nowhere(kind):
    assert differences(facts(dataclasses.replace(PLAN, **kind))) == []


@pytest.mark.parametrize("changed", [{"secure_noise": False}, {"steps_by_sampler": {"groupclip": 3, "user": 4}}])
def test_a_record_that_claims_nothing_differs_nowhere(changed):
    assert differences(facts(**changed)) == []


@pytest.mark.parametrize("kind", [{}, {"expected_batch_size": 50.5}])
def test_a_record_of_a_resumed_run_with_correlated_noise_differs_nowhere(kind):
    plan = dataclasses.replace(PLAN, bands=4, adjacency="zero-out", **kind)
    record = facts(plan, rounds=plan.rounds(15) + 1)
    assert differences(record) == []
    record.update(rounds=16)
    assert any(each.startswith("rounds: 4 to 15, by steps_taken 15 and bands 4, ") for each in differences(record))


@pytest.mark.parametrize("obstacle", ["", "the noise was made from a seed"])
def test_a_record_with_earlier_trainings_differs_nowhere(obstacle):
    assert differences(facts(earlier=(EarlierTraining(mechanism=PLAN, steps=7, obstacle=obstacle),))) == []
    assert differences(facts(other_releases={"counts": 20.0}, noise_std={"first": 2.1, "second": 2.1}, views=3)) == []


def earlier(epsilon: float) -> dict:
    """One training before, of which another epsilon is claimed than it spent."""
    return {**EarlierTraining(mechanism=PLAN, steps=7).to_dict(), "epsilon": epsilon}


def edited(change) -> dict:
    record = copy.deepcopy(facts())
    change(record)
    return record


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda r: r.update(epsilon=r["epsilon"] * 0.99), "epsilon: "),
        (lambda r: r["epsilon_by_samples_of_a_person"].update({"4": 1.0}), "epsilon of a person with 4 samples"),
        (lambda r: r.update(delta=1e-7), "epsilon: "),
        (lambda r: r.update(steps_taken=14), "steps_taken: "),
        (lambda r: r["sampling_used"].update(groupclip=14), "steps_taken: "),
        (lambda r: r.update(noise_multiplier=2.1), "groups: their noise amounts to a multiplier of 2, the plan says 2.1"),
        (lambda r: r.update(expected_batch_size=90), "plan_hash: "),
        (lambda r: r.update(sample_rate=0.2), "sample_rate: "),
        (lambda r: r.update(mechanism="Laplace"), "mechanism: "),
        (lambda r: r["groups"][0].update(noise_std=1.0), "groups: their noise amounts to"),
        (lambda r: r.update(other_releases=[{"name": "counts", "noise_multiplier": 1.0}]), "groups: their noise amounts to"),
        (lambda r: r.update(secure_noise=False), "one is claimed, though the noise was made from a seed, so it is reproducible"),
        (lambda r: r["sampling_used"].update(groupclip=0, user=15), "nobody vouches that the sampling was Poisson"),
        (lambda r: r.update(private=False, epsilon=None), "its facts don't say why none is claimed"),
        (lambda r: r.update(unit_of_privacy=UNITS["user"]), "unit_of_privacy: 'one sample: one row of the training data'"),
        (lambda r: r.update(accountant="magic"), "accountant: "),
        (lambda r: r.update(accountant="RDP"), "accountant: "),
        (lambda r: r.update(epsilon_rdp=r["epsilon_pld"], epsilon_pld=r["epsilon_rdp"]), "epsilon_pld: "),
        (lambda r: r.update(epsilon_exact=0.1), "epsilon_exact: None"),
        (lambda r: r.update(accountant_note="none"), "accountant_note: "),
        (lambda r: r.update(obstacles=["no noise was added"]), "obstacles: []"),
        (lambda r: r.update(secure_noise=False, private=False, epsilon=None), "obstacles: ['the noise was made from a seed"),
        (lambda r: r.update(epsilon_by_samples_of_a_person={}), "epsilon of a person with 2 samples: "),
        (lambda r: r["epsilon_by_samples_of_a_person"].pop("8"), "epsilon of a person with 8 samples: "),
        (lambda r: r["epsilon_by_samples_of_a_person"].update({"1000": 0.5}), "epsilon of a person with 1000 samples: None"),
        (
            lambda r: r.update(steps_taken=1, sampling_used={"groupclip": 1, "user": 0}),
            "rounds: 1, by steps_taken 1 and bands 1, the record says 15",
        ),
        (lambda r: r.update(rounds=16), "rounds: 15, by steps_taken 15 and bands 1, the record says 16"),
        (lambda r: r.update(steps_taken=21, sampling_used={"groupclip": 21, "user": 0}), "steps_taken: 20 steps were planned"),
        (lambda r: r["told"].update(search="none"), "tuning_accounted: True, the record says False"),
        (lambda r: r.update(tuning_accounted=True), "tuning_accounted: False, the record says True"),
        (lambda r: r.update(normalised_by=50), "normalised_by: 100, the record says 50"),
        (lambda r: r.update(released="everything"), "released: 'the noisy gradient of every step"),
        (lambda r: r.update(sampling_vouched_by_user=True), "sampling_vouched_by_user: False"),
        (lambda r: r.update(accounting_library="dp-accounting 9"), "accounting_library: 'dp-accounting "),
        (lambda r: r.update(earlier_trainings=[earlier(0.5)]), "earlier_trainings[0].epsilon: "),
    ],
)
def test_what_was_changed_is_named(change, named):
    found = differences(edited(change))
    assert any(named in each for each in found), found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(schema="other"), "its schema is 'other'"),
        (lambda r: r.pop("dataset_size"), "has no 'dataset_size'"),
        (lambda r: r.pop("groups"), "can't be read"),
        (lambda r: r.update(sampling_assumed="shuffled"), "of no kind that groupclip knows"),
        (lambda r: r.update(dataset_size=10), "is larger than dataset_size"),
        (lambda r: r.update(dataset_size="1000"), "dataset_size='1000' must be a whole number"),
        (lambda r: r.update(groups=[]), "groups is empty: every run has a group"),
        (lambda r: r.update(groups={"first": 1}), "groups must be a list"),
        (lambda r: r["groups"].insert(0, {**r["groups"][0], "noise_std": 1e-9}), "groups: 'first' is there more than once"),
        (lambda r: r["groups"][1].update(threshold=-0.8), r"groups\[1\].threshold=-0.8 must be > 0"),
        (lambda r: r["groups"][1].update(threshold=0), r"groups\[1\].threshold=0 must be > 0"),
        (lambda r: r["groups"][0].update(noise_std=float("inf")), r"groups\[0\].noise_std=inf must be finite"),
        (lambda r: r["groups"][0].update(noise_std=float("nan")), r"groups\[0\].noise_std=nan must be finite"),
        (lambda r: r["groups"][0].pop("noise_std"), r"groups\[0\] must have name, threshold, noise_std"),
        (lambda r: r.update(other_releases=[{"name": "counts", "noise_multiplier": -9.0}]), "other_releases"),
        (lambda r: r.update(secure_noise="no"), "secure_noise='no' must be true or false"),
        (lambda r: r.update(private=1), "private=1 must be true or false"),
        (lambda r: r.update(sampling_vouched_by_user="nobody"), "sampling_vouched_by_user='nobody' must be true or false"),
        (lambda r: r.update(hardened_against_floating_point_attacks="yes"), "hardened_against_floating_point_attacks='yes'"),
        (lambda r: r.update(views=0), "views=0 must be >= 1"),
        (lambda r: r.update(views="<b>"), "views='<b>' must be a whole number"),
        (lambda r: r.update(epsilon="3"), "epsilon='3' must be a number"),
        (lambda r: r.update(epsilon=float("nan")), "epsilon=nan must be finite"),
        (lambda r: r.update(epsilon=10**400), "epsilon"),
        (lambda r: r.update(delta=2), r"delta=2 must be in \(0, 1\)"),
        (lambda r: r.update(sampling_used={"groupclip": 20, "user": -5}), "sampling_used.user=-5 must be >= 0"),
        (lambda r: r.update(sampling_used={"groupclip": 15, "user": 0, "other": 9}), "sampling_used must have groupclip, user"),
        (lambda r: r.update(rounds=15.0), "rounds=15.0 must be a whole number"),
        (lambda r: r.update(told=None), "told must be a mapping"),
        (lambda r: r["told"].update(search="none", search_epsilon=1.0), "told: search='none' with search_epsilon=1.0"),
        (lambda r: r.update(budget={"epsilon": 3.0, "delta": 1e-5, "entries": 0}), "budget.entries=0 must be >= 1"),
        (lambda r: r.update(budget={"epsilon": 3.0}), "budget must have epsilon, delta, entries"),
        (lambda r: r.update(unsafe_statistics="none"), "unsafe_statistics must be a list"),
        (lambda r: r.update(earlier_trainings=[{"steps": 3}]), r"earlier_trainings\[0\] must have mechanism"),
        (lambda r: r.update(earlier_trainings=[{**earlier(0.5), "mechanism": {}}]), "mechanism"),
    ],
)
def test_what_is_no_record_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        differences(edited(change))


def test_the_command_says_so_or_where_it_differs(tmp_path, capsys):
    path = tmp_path / "privacy.json"
    path.write_text(json.dumps(facts()))
    assert run(["epsilon", "--record", str(path)]) == 0
    assert "its facts give what it claims, epsilon" in capsys.readouterr().out
    path.write_text(json.dumps(edited(lambda r: r.update(epsilon=0.1))))
    assert run(["epsilon", "--record", str(path)]) == 1
    assert "epsilon: " in capsys.readouterr().err
    path.write_text(json.dumps(facts(secure_noise=False)))
    assert run(["epsilon", "--record", str(path)]) == 0
    assert "no epsilon is claimed, and its facts say why: the noise was made from a seed" in capsys.readouterr().out
    twice = json.dumps(facts()).replace('{"schema"', '{"epsilon": 0.01, "schema"')
    path.write_text(twice)
    assert run(["epsilon", "--record", str(path)]) == 2
    assert "'epsilon' is there more than once" in capsys.readouterr().err
    for text in ("[]", "{"):
        path.write_text(text)
        assert run(["epsilon", "--record", str(path)]) == 2


def test_a_runs_folder_or_its_release_stands_for_its_record(tmp_path, capsys):
    release = tmp_path / "release"
    release.mkdir()
    assert run(["epsilon", "--record", str(tmp_path)]) == 2
    assert "privacy.json" in capsys.readouterr().err
    (release / "privacy.json").write_text(json.dumps(facts()))
    for path in (tmp_path, release):
        assert run(["epsilon", "--record", str(path)]) == 0
        assert run(["statement", "--run", str(path), "--as", "questions"]) == 0
    assert "its facts give what it claims, epsilon" in capsys.readouterr().out


def test_no_torch_is_loaded_for_it(tmp_path):
    path = tmp_path / "privacy.json"
    path.write_text(json.dumps(facts()))
    program = "import sys; from groupclip.cli.app import run; print(run(sys.argv[1:]), 'torch' in sys.modules)"
    command = [sys.executable, "-c", program, "epsilon", "--record", str(path)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1] == "0 False"
