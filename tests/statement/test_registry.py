"""The entry of the registry validates against its schema, and tells what the record tells."""

import copy
import json
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
import yaml

from groupclip.cli.app import run
from groupclip.privacy.mechanism import Mechanism
from groupclip.statement.drawn import DrawnBudget
from groupclip.statement.record import PrivacyRecord
from groupclip.statement.registry import blanks, registry_entry
from groupclip.statement.told import Told

SCHEMA = json.loads(Path(__file__).with_name("registry-schema.json").read_text(encoding="utf-8"))
KINDS = {"string": str, "integer": int, "number": (int, float), "array": list, "object": dict}
CURATORS = {
    "basic.name", "basic.data_curators", "basic.intended_use", "basic.data_product_region", "basic.description",
    "dp_variant.data_domain", "deployment_model.actors", "accounting.composition",
    "implementation.preprocessing_and_hyperparameter_tuning", "implementation.justification", "administrative.sources",
    "administrative.registry_authors",
}  # fmt: skip


def facts(**changed) -> dict:
    plan = Mechanism(dataset_size=1_000, expected_batch_size=100, steps=20, noise_multiplier=2.0)
    given = {
        "mechanism": plan, "delta": 1e-5, "steps_by_sampler": {"groupclip": 20, "user": 0}, "thresholds": {"all": 1.0},
        "noise_std": {"all": 2.0}, "clip": "automatic", "partition_style": "all-layer", "secure_noise": True,
    }  # fmt: skip
    return json.loads(json.dumps(PrivacyRecord(**{**given, **changed}).to_dict()))


def faults(value, schema, where="") -> list[str]:
    """Where a value breaks the schema: types, choices, names, what is required."""
    if not isinstance(value, KINDS[schema["type"]]):
        return [f"{where}: {type(value).__name__}"]
    found = [f"{where}: {value!r}"] if "enum" in schema and value not in schema["enum"] else []
    if schema.get("format") == "date":
        date.fromisoformat(value)
    if schema["type"] == "array":
        found += [f"{where}: empty"] if len(value) < schema["minItems"] else []
        found += [fault for each in value for fault in faults(each, schema["items"], where)]
    if schema["type"] == "object":
        found += [f"{where}.{name}: missing" for name in schema["required"] if name not in value]
        for name, each in value.items():
            known = schema["properties"].get(name)
            found += [f"{where}.{name}: unknown"] if known is None else faults(each, known, f"{where}.{name}")
    return found


def entry(**changed) -> dict:
    return registry_entry(facts(**changed), slug="a-model-2026", published=date(2026, 1, 2))


def test_the_entry_validates_and_only_the_curators_facts_are_blank():
    made = entry()
    assert faults(made, SCHEMA) == []
    assert set(blanks(made)) == {f"deployment.{name}" for name in CURATORS}
    loss = made["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"] == {"epsilon": facts()["epsilon"], "delta": 1e-5}
    assert "at the same delta: " in loss["privacy_parameters_details"]


def test_the_budget_is_told():
    budget = DrawnBudget(epsilon=4.0, delta=1e-6, entries=3)
    words = "It draws on a budget with 2 other entries; when this was written, all of them together had spent epsilon = 4.00"
    assert words in entry(budget=budget)["deployment"]["accounting"]["composition"]
    assert "budget" not in entry()["deployment"]["accounting"]["composition"]


def test_groups_are_counted_in_words():
    assert "is clipped (automatic) in 1 group (all-layer)." in entry()["deployment"]["implementation"]["mechanisms"]
    two = {"thresholds": {"a": 0.6, "b": 0.8}, "noise_std": {"a": 2.0, "b": 2.0}, "partition_style": "layer-wise"}
    assert " in 2 groups (layer-wise)." in entry(**two)["deployment"]["implementation"]["mechanisms"]


def test_what_was_told_is_filled_in():
    told = Told(
        trust="One hospital.", vocabulary="No.", constants="No.", filtering="No.", early_stopping="No.", search="counted",
        search_epsilon=5.0, others="Nothing else.",
    )  # fmt: skip
    made = entry(told=told)
    assert faults(made, SCHEMA) == []
    filled = {"deployment_model.actors", "accounting.composition", "implementation.preprocessing_and_hyperparameter_tuning"}
    assert set(blanks(made)) == {f"deployment.{name}" for name in CURATORS - filled}
    before = made["deployment"]["implementation"]["preprocessing_and_hyperparameter_tuning"]
    assert "The whole search for settings spends epsilon 5.0 at delta 1e-05." in before and "Vocabulary: No." in before
    some = entry(told=Told(search="not counted", vocabulary="No."))["deployment"]["implementation"]
    before = some["preprocessing_and_hyperparameter_tuning"]
    assert "which the figure doesn't count" in before
    assert before.endswith("TO FILL IN: what was read before training: constants, filters, early stopping")


def test_twin_the_schema_rejects_what_it_should():
    for change in (
        lambda e: e.update(surprise=1),
        lambda e: e.pop("status"),
        lambda e: e.update(tier=0),
        lambda e: e["deployment"]["basic"].update(data_curators=[]),
        lambda e: e["deployment"]["privacy_loss"]["privacy_parameters"].update(epsilon="3"),
    ):
        made = copy.deepcopy(entry())
        change(made)
        assert len(faults(made, SCHEMA)) == 1


def test_what_was_looked_at_and_vouched_for_is_told():
    made = entry(
        unsafe_statistics=("norms",), steps_by_sampler={"groupclip": 0, "user": 20}, sampling_vouched_by_user=True
    )["deployment"]
    assert "looked at without noise: norms" in made["dp_variant"]["unprotected_quantities"]
    assert "vouches for the sampling" in made["implementation"]["mechanisms"]


def test_a_record_without_a_claim_or_with_another_one_is_refused():
    with pytest.raises(ValueError, match="claims no epsilon"):
        entry(secure_noise=False)
    with pytest.raises(ValueError, match="claims other than its facts give: epsilon"):
        registry_entry({**facts(), "epsilon": 0.1}, slug="x", published=date(2026, 1, 2))


def test_the_command_writes_yaml_and_lists_what_is_to_fill_in(tmp_path):
    folder = tmp_path / "release"
    folder.mkdir()
    (folder / "privacy.json").write_text(json.dumps(facts()))
    program = "import sys; from groupclip.cli.app import run; code = run(sys.argv[1:]); sys.exit(code or 'torch' in sys.modules)"
    asked = ["statement", "--run", str(tmp_path), "--as", "registry", "--published", "2026-01-02"]
    done = subprocess.run([sys.executable, "-c", program, *asked], check=True, capture_output=True, text=True)
    made = yaml.safe_load(done.stdout)
    assert faults(made, SCHEMA) == [] and made["deployment"] == entry()["deployment"]
    assert "  deployment.basic.data_curators\n" in done.stderr


def test_a_run_without_a_release_is_refused(tmp_path):
    assert run(["statement", "--run", str(tmp_path), "--as", "registry"]) == 2
