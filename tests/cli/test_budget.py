"""``groupclip budget``: the figures of the library's budget, from the file."""

import json

from groupclip import Mechanism
from groupclip.cli.app import run
from groupclip.privacy.budget import Budget
from groupclip.privacy.figures import figure

COUNT = ["--dataset-size", "900", "--batch-size", "900", "--sampling", "full-batch", "--steps", "1", "--noise-multiplier", "10"]


def test_a_budget_is_begun_added_to_and_shown(tmp_path, capsys):
    path = str(tmp_path / "b")
    assert run(["budget", "new", "--file", path, "--epsilon", "2", "--delta", "1e-6"]) == 0
    plan = Mechanism(dataset_size=1_000, expected_batch_size=10, steps=20, noise_multiplier=2.0)
    Budget(path).reserve(plan, label="training")
    assert run(["budget", "add", "--file", path, *COUNT, "--label", "evaluation", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    found = Budget(path)
    assert facts["spent"] == found.spent().epsilon < facts["set_aside"] == found.committed().epsilon
    assert [entry["label"] for entry in facts["entries"]] == ["training", "evaluation"]
    assert run(["budget", "show", "--file", path]) == 0
    told = capsys.readouterr().out
    assert "allowed           2\n" in told
    assert f"spent             {figure(found.spent().epsilon)}, by {found.spent().accountant}" in told
    left = float(told.split("left at most")[1].split(":")[0])
    assert 2 - found.committed().epsilon - 1e-4 <= left <= 2 - found.committed().epsilon
    assert f"with open steps   {figure(found.committed().epsilon)}" in told and "0 of 20 steps, open: training" in told


def test_a_search_is_added(tmp_path, capsys):
    path = str(tmp_path / "b")
    Budget(path, epsilon=3, delta=1e-6)
    asked = ["--dataset-size", "1000", "--batch-size", "10", "--steps", "20", "--noise-multiplier", "2", "--search", "4"]
    assert run(["budget", "add", "--file", path, *asked]) == 0
    assert "the best of about 4 runs of 20 steps" in capsys.readouterr().out


def test_what_cannot_be_is_refused_by_code(tmp_path, capsys):
    path = str(tmp_path / "b")
    assert run(["budget", "show", "--file", path]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"{path} isn't there: begin a budget by groupclip budget new --file {path} --epsilon E --delta D" in told
    assert run(["budget", "new", "--file", path, "--epsilon", "0.1", "--delta", "1e-6"]) == 0
    assert run(["budget", "new", "--file", path, "--epsilon", "0.1", "--delta", "1e-6"]) == 2
    assert "is there already" in capsys.readouterr().err
    assert run(["budget", "add", "--file", path, *COUNT]) == 1
    assert "allows epsilon=0.1" in capsys.readouterr().err
    assert not Budget(path).entries


def test_a_budget_of_which_nothing_is_spent_says_so_and_an_empty_file_is_none(tmp_path, capsys):
    path = tmp_path / "b"
    path.touch()
    for command in (["show"], ["add", *COUNT], ["close", "--entry", "x"]):
        assert run(["budget", command[0], "--file", str(path), *command[1:]]) == 2
        assert "is empty: begin a budget by groupclip budget new" in " ".join(capsys.readouterr().err.split())
    assert run(["budget", "new", "--file", str(path), "--epsilon", "2", "--delta", "1e-6"]) == 0
    assert run(["budget", "show", "--file", str(path)]) == 0
    told = capsys.readouterr().out
    assert "spent             nothing yet\n" in told and "none" not in told and "left at most      2:" in told
