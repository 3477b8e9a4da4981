"""Runs are held against naming the commonest class, and one that learnt nothing says so and what to change."""

import math

import pytest
import torch
from torch.utils.data import TensorDataset

from groupclip.models import build_model
from groupclip.run import start
from groupclip.run.evaluate import evaluate
from groupclip.run.guessing import near_guessing
from groupclip.tasks import load_task
from groupclip.tasks.spec import Task
from small_runs import REQUEST


@pytest.mark.parametrize(
    ("right", "near"), [(50, True), (59, True), (60, False), (90, False), (10, True)]
)  # 50 of 100, and a standard error of 5
def test_near_is_within_two_standard_errors(right, near):
    assert near_guessing(right / 100, 0.5, 100) == near


def test_the_share_is_that_of_the_held_out_records():
    inputs, labels = torch.zeros(10, 1, 4, 4), torch.tensor([0] * 7 + [1] * 3)
    task = Task(
        name="digits", kind="image", train=TensorDataset(inputs[:2], labels[-2:]), test=TensorDataset(inputs, labels), public=None,
        input_shape=(1, 4, 4), classes=("a", "b"),
    )  # fmt: skip
    found = evaluate(build_model("linear", input_shape=(1, 4, 4), num_classes=2), task, torch.device("cpu"))
    assert found.majority_share == 0.7


@pytest.fixture(scope="module")
def unlearnt(tmp_path_factory):
    """A run of one step with hardly any learning rate."""
    return start({**REQUEST, "steps": 1, "lr": 1e-9, "model": "mlp"}, tmp_path_factory.mktemp("unlearnt") / "run").train()


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    return start({**REQUEST, "steps": 30, "epsilon": 50, "batch_size": 256}, tmp_path_factory.mktemp("learnt") / "run").train()


def test_every_run_names_the_share_of_the_commonest_class(unlearnt, learnt):
    labels = load_task("digits").test.tensors[1]
    share = float(labels.bincount().max() / len(labels))
    for outcome in (unlearnt, learnt):
        assert math.isclose(outcome.majority_share, share, rel_tol=1e-6)
        card = (outcome.release / "README.md").read_text()
        assert f"naming the commonest class of the held-out records for all of them has {share:.1%}" in card
        assert f"<strong>{share:.1%}</strong><span>by always naming the commonest class" in outcome.report.read_text()


def test_a_run_that_learnt_nothing_says_so_and_what_to_change(unlearnt):
    (finding,) = unlearnt.findings
    assert finding.startswith("Little or nothing was learnt: ")
    for hint in ("the recipe's own lr", "--clipping all-layer", "more records than 1,437 samples", "a larger --epsilon"):
        assert hint in finding
    assert finding in (unlearnt.release / "README.md").read_text()
    assert "Little or nothing was learnt" in unlearnt.report.read_text()


def test_a_run_that_learnt_something_says_nothing(learnt):
    assert learnt.test_accuracy > 0.5
    assert learnt.findings == ()
    assert "Little or nothing" not in learnt.report.read_text() + (learnt.release / "README.md").read_text()


def test_the_command_tells(tmp_path, capsys):
    from groupclip.cli.app import run

    given = ["--task", "digits", "--model", "mlp", "--epsilon", "3", "--steps", "1", "--lr", "1e-9", "--quiet"]
    assert run(["train", *given, "--out", str(tmp_path / "run")]) == 0
    told = capsys.readouterr().out
    assert "by always naming their commonest class)" in told
    assert "note           Little or nothing was learnt" in told
