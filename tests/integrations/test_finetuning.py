"""What was measured of trainers on real data: the page is made of its results, and these say what the page is for."""

import json

from benchmark import benchmark

PAGE = benchmark("finetuning")
ROWS = json.loads((PAGE.DOCS / "finetuning.json").read_text(encoding="utf-8"))
SST2 = [row for row in ROWS if row["task"] == "sst2"]


def test_the_page_is_made_of_its_results():
    assert (PAGE.DOCS / "finetuning.md").read_text(encoding="utf-8") == PAGE.written(PAGE.DOCS)


def test_under_known_keys_trainer_and_loop_are_one_training():
    seeds = {row["seed"] for row in SST2} - {None}
    assert seeds
    for seed in seeds:
        by_way = {row["way"]: row for row in SST2 if row["seed"] == seed}
        assert by_way["trainer"]["weights"] == by_way["loop"]["weights"]
        assert by_way["trainer"]["accuracy"] == by_way["loop"]["accuracy"]


def test_an_epsilon_is_claimed_under_secret_keys_alone():
    assert all((row["epsilon"] is None) == (row["seed"] is not None) for row in SST2)
    assert all(row["epsilon"] <= PAGE.EPSILON for row in ROWS if row["epsilon"] is not None)


def test_a_run_of_trl_has_its_steps():
    (row,) = [row for row in ROWS if row["task"] == "e2e"]
    assert row["steps"] == row["settings"]["steps"] and row["trained"] < row["parameters"] / 100
    assert row["loss"] < row["loss_before"]


def test_tables_of_attributes_are_written_out():
    assert PAGE.table("name[The Vaults], customer rating[5 out of 5]") == "name : The Vaults | customer rating : 5 out of 5 ||"
