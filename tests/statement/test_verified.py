"""A record is computed again from its facts: what was changed in it is named."""

import copy
import dataclasses
import json
import subprocess
import sys

import pytest

from groupclip.cli.app import run
from groupclip.privacy.mechanism import Mechanism
from groupclip.statement.record import PrivacyRecord
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
        (lambda r: r.update(secure_noise=False), "one is claimed, though the noise is reproducible from a seed"),
        (lambda r: r["sampling_used"].update(groupclip=0, user=15), "nobody vouches for the sampling"),
        (lambda r: r.update(private=False, epsilon=None), "its facts don't say why none is claimed"),
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
    for text in ("[]", "{"):
        path.write_text(text)
        assert run(["epsilon", "--record", str(path)]) == 2


def test_no_torch_is_loaded_for_it(tmp_path):
    path = tmp_path / "privacy.json"
    path.write_text(json.dumps(facts()))
    program = "import sys; from groupclip.cli.app import run; print(run(sys.argv[1:]), 'torch' in sys.modules)"
    command = [sys.executable, "-c", program, "epsilon", "--record", str(path)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1] == "0 False"
