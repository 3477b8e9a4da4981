"""A whole run: what it writes, and that it can be done again."""

import json
import stat
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file

from groupclip.models import build_model
from groupclip.privacy.budget import Budget
from groupclip.run import read_yaml, resume, start
from groupclip.tasks import load_task
from small_runs import REQUEST, STEPS, contents, stopped_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "deep" / "digits"
    return start(REQUEST, out).train()


def rows_of(outcome):
    return [json.loads(line) for line in (outcome.out / "metrics.jsonl").read_text().splitlines()]


def test_a_run_writes_its_results_and_removes_its_secret_part(finished):
    names = {p.name for p in finished.out.iterdir()}
    assert names == {"release", "report.html", "metrics.jsonl", "run.yaml"}
    assert {p.name for p in finished.release.iterdir()} == {
        "model.safetensors", "privacy.json", "README.md", "config.json",
    }  # fmt: skip


def test_every_step_has_a_row_and_a_row_holds_nothing_else(finished):
    rows = rows_of(finished)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    usual = {"step", "updates", "epsilon", "learning_rate", "noisy_gradient_norm"}
    evaluated = {row["step"]: set(row) - usual for row in rows if set(row) != usual}
    assert evaluated == {4: {"test_accuracy", "public_loss"}, 8: {"test_accuracy", "public_loss"}}


def test_epsilon_grows_to_what_was_planned(finished):
    epsilons = [row["epsilon"] for row in rows_of(finished)]
    assert all(a < b for a, b in pairwise(epsilons))
    assert epsilons[-1] == finished.epsilon
    assert 0.99 * 3 <= finished.epsilon <= 3


def test_the_plan_is_named_by_its_hash(finished):
    facts = json.loads((finished.release / "privacy.json").read_text())
    assert len(facts["plan_hash"]) == 64
    assert facts["epsilon"] == finished.epsilon
    assert facts["sampling_used"] == {"groupclip": STEPS, "user": 0}


def test_the_released_weights_give_the_reported_accuracy(finished):
    task = load_task("digits")
    settings = json.loads((finished.release / "config.json").read_text())
    model = build_model(
        settings["model"], input_shape=tuple(settings["input_shape"]), num_classes=len(settings["classes"])
    )
    model.load_state_dict(load_file(finished.release / "model.safetensors"))
    inputs, labels = task.test[:]
    with torch.no_grad():
        accuracy = (model(inputs).argmax(1) == labels).double().mean()
    assert float(accuracy) == finished.test_accuracy


def test_training_moved_the_weights(finished):
    weights = load_file(finished.release / "model.safetensors")
    initial = build_model("linear", input_shape=(1, 8, 8), num_classes=10, seed=0).state_dict()
    assert all(not torch.equal(weights[name], initial[name]) for name in initial)


def test_run_yaml_does_the_run_again(finished, tmp_path):
    again = start(read_yaml(finished.out / "run.yaml"), tmp_path / "again").train()
    assert (again.out / "run.yaml").read_text() == (finished.out / "run.yaml").read_text()
    assert (again.steps, again.epsilon) == (finished.steps, finished.epsilon)
    # the same settings, another key: reproducible noise would be no noise
    first, second = (load_file(run.release / "model.safetensors") for run in (finished, again))
    assert not torch.equal(first["head.weight"], second["head.weight"])


def test_the_resume_folder_is_kept_on_request_for_its_owner_alone(tmp_path):
    outcome = start({**REQUEST, "steps": 1}, tmp_path / "kept").train(keep_resume=True)
    folder = outcome.out / "resume"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {p.name: stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()} == {
        "checkpoint.safetensors": 0o600,
        "ledger.jsonl": 0o600,
    }


def test_a_run_without_evaluation_never_looks_at_held_out_records(tmp_path, monkeypatch):
    monkeypatch.setattr("groupclip.run.loop.evaluate", None)
    monkeypatch.setattr("groupclip.run.train.evaluate", None)
    outcome = start({**REQUEST, "steps": 2, "eval_every": 0}, tmp_path / "blind").train()
    assert outcome.test_accuracy is None
    assert not any("test_accuracy" in row for row in rows_of(outcome))


def test_a_run_that_diverges_is_a_run_all_the_same(tmp_path):
    request = {**REQUEST, "steps": 3, "eval_every": 1, "lr": 1e38, "optimizer": "sgd"}
    outcome = start(request, tmp_path / "diverged").train()
    assert [row["step"] for row in rows_of(outcome)] == [1, 2, 3]
    assert "public_loss" not in rows_of(outcome)[-1]


def test_a_run_that_cannot_be_made_gives_up_its_folder_and_its_budget(tmp_path, monkeypatch):
    def fails(*_):
        raise RuntimeError("no loop")

    out, budget = tmp_path / "run", Budget(tmp_path / "budget", epsilon=9.0, delta=1e-5)
    with monkeypatch.context() as broken, pytest.raises(RuntimeError, match="no loop"):
        broken.setattr("groupclip.run.train.Loop", fails)
        start({**REQUEST, "budget": str(budget.path)}, out)
    assert not contents(out) and not budget.entries[0].is_open
    stopped_run(out, 3)  # the folder isn't held
    before = contents(out)
    with monkeypatch.context() as broken, pytest.raises(RuntimeError, match="no loop"):
        broken.setattr("groupclip.run.train.Loop", fails)
        resume(out)
    assert contents(out) == before
    assert resume(out).train().steps == STEPS


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("schedule", "rates"), [("constant", [1, 1, 1, 1]), ("linear", [1, 0.75, 0.5, 0.25]), ("cosine", [1, 0.8536, 0.5, 0.1464])]
)
def test_the_learning_rate_follows_its_schedule(tmp_path, schedule, rates):
    request = {**REQUEST, "steps": 4, "lr": 0.01, "schedule": schedule, "optimizer": "sgd", "eval_every": 0}
    rows = rows_of(start(request, tmp_path / "scheduled").train())
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.01 * rate for rate in rates], rel=1e-3)
